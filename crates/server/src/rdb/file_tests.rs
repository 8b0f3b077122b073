//! Tests of RDB files: written and read back, written by Redis, changed at random.

use super::reader::{RdbEntry, RdbError, RdbReader};
use super::writer::{RdbString, RdbWriter};

/// Written by redis-server 7.0.15: strings in every encoding, one value of each other type, a library.
const REDIS_7_0: &[u8] = include_bytes!("redis_7_0.rdb");
const LIMIT: usize = 1 << 20;

/// What a file holds, in order: strings by key and value, other types by key and name.
fn entries(file: &[u8]) -> Result<Vec<(u32, String, String, u64)>, RdbError> {
    let mut reader = RdbReader::new(file, LIMIT)?;
    let mut found = Vec::new();
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    while let Some(entry) = reader.next_entry()? {
        match entry {
            RdbEntry::Aux(..) => {}
            RdbEntry::Library(code) => found.push((0, "library".into(), text(code), 0)),
            RdbEntry::String(s) => found.push((s.db, text(s.key), text(s.value), s.expires_ms)),
            RdbEntry::Other { db, key, type_name } => {
                found.push((db, text(key), type_name.into(), 0));
            }
        }
    }
    assert_eq!(reader.position(), file.len() as u64);
    Ok(found)
}

fn written(values: &[RdbString<'_>], compresses: bool) -> Vec<u8> {
    let mut writer = RdbWriter::new(Vec::new(), compresses, &[("redis-bits", "64")]).unwrap();
    writer.database(0, values.len() as u64, 0).unwrap();
    for value in values {
        writer.string(value).unwrap();
    }
    let (file, bytes) = writer.finish().unwrap();
    assert_eq!(bytes, file.len() as u64);
    file
}

#[test]
fn a_file_of_redis_is_read_whole() {
    let found = entries(REDIS_7_0).unwrap();
    let value = |key: &str| {
        let entry = found.iter().find(|(_, name, ..)| name == key);
        let (db, _, value, expires_ms) = entry.unwrap_or_else(|| panic!("{key}: {found:?}"));
        (*db, value.as_str(), *expires_ms)
    };
    for (key, expected) in [
        ("s:plain", "hello"),
        ("s:int8", "12"),
        ("s:int16", "-3000"),
        ("s:int32", "100000"),
        ("s:big", "12345678901"),
        ("s:empty", ""),
        ("s:lzf", &"abc".repeat(60)),
        ("l", "list"),
        ("lbig", "list"),
        ("si", "set"),
        ("ss", "set"),
        ("zl", "zset"),
        ("zs", "zset"),
        ("hl", "hash"),
        ("hh", "hash"),
        ("st", "stream"),
    ] {
        assert_eq!(value(key), (0, expected, 0), "{key}");
    }
    assert_eq!(value("s:ttl"), (0, "soon", 4_102_444_800_000));
    assert_eq!(value("other"), (5, "5", 0));
    assert!(value("library").1.contains("mylib"));
    assert_eq!(found.len(), 20);
}

#[test]
fn a_written_file_is_read_back() {
    let long = vec![b'x'; 300_000];
    let random: Vec<u8> = (0..100_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    let plain = |db, key, value| RdbString {
        db,
        key,
        value,
        ..RdbString::default()
    };
    let values = [
        plain(0, b"a", b"1"),
        plain(3, b"123", b"-70000"),
        plain(0, b"", b""),
        plain(0, b"long", &long),
        plain(15, b"random", &random),
        RdbString {
            expires_ms: 77,
            flags: u32::MAX,
            kind: 0x80,
            ..plain(0, b"mc", b"item")
        },
        plain(0, b"after", b"no flags"),
    ];
    for compresses in [true, false] {
        let file = written(&values, compresses);
        let mut reader = RdbReader::new(&file[..], LIMIT).unwrap();
        let mut expected = values.iter();
        while let Some(entry) = reader.next_entry().unwrap() {
            if let RdbEntry::String(found) = entry {
                assert_eq!(Some(&found), expected.next());
            }
        }
        assert_eq!(expected.next(), None);
    }
}

#[test]
fn files_of_older_versions_are_read() {
    // Version 1 to 4 have no checksum; 5 and later may have 0 instead of one.
    let old = b"REDIS0001\xfe\x00\xfd\x01\x00\x00\x00\x00\x01a\x01b\xff";
    assert_eq!(
        entries(old).unwrap(),
        [(0, "a".into(), "b".into(), 1000_u64)]
    );
    let unchecked = b"REDIS0007\xfe\x00\x00\x01a\x01b\xff\0\0\0\0\0\0\0\0";
    assert_eq!(entries(unchecked).unwrap().len(), 1);
}

#[test]
fn damaged_files_are_errors() {
    let file = written(
        &[RdbString {
            key: b"key",
            value: b"value",
            ..RdbString::default()
        }],
        true,
    );
    for len in 0..file.len() {
        assert!(entries(&file[..len]).is_err(), "{len}");
    }
    for at in 0..file.len() {
        let mut changed = file.clone();
        changed[at] ^= 0x10;
        assert!(entries(&changed).is_err(), "{at}");
    }
    for (bytes, error) in [
        (&b"RADIS0010\xff"[..], "not an RDB file"),
        (b"REDIS0011\xff", "has version 11"),
        (b"REDIS0000\xff", "has version 0"),
        (b"REDIS000x\xff", "not an RDB file"),
        (b"REDIS0010\x20\x01a\x01b", "damaged at byte"),
        (
            b"REDIS0010\x00\x81\xff\xff\xff\xff\xff\xff\xff\xff",
            "too long",
        ),
        (b"REDIS0010\x00\x80\x00\x0f\xff\xff", "ends too early"),
        (
            b"REDIS0010\x01\x01a\x81\xff\xff\xff\xff\xff\xff\xff\xff",
            "ends too early",
        ),
        (b"REDIS0010\xf6\x01a", "release candidate"),
    ] {
        let found = entries(bytes).unwrap_err().to_string();
        assert!(found.contains(error), "{bytes:?}: {found}");
    }
}

#[test]
fn mutated_files_neither_panic_nor_exceed_the_limit() {
    let mut word = 11_u64;
    let mut random = move |end: usize| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (word >> 33) as usize % end
    };
    for _ in 0..5_000 {
        let mut file = REDIS_7_0.to_vec();
        for _ in 0..1 + random(3) {
            let at = 9 + random(file.len() - 9);
            match random(3) {
                0 => file[at] ^= 1 << random(8),
                1 => file[at] = [0, 0x3f, 0x80, 0x81, 0xc3, 0xfe, 0xff][random(7)],
                _ => file.truncate(at.max(10)),
            }
        }
        if let Ok(found) = entries(&file) {
            assert!(found.iter().all(|(.., value, _)| value.len() <= 4 * LIMIT));
        }
    }
}
