//! Tests that bytes of a pool are where docs/format.md says they are. If one of these tests fails, the format has
//! changed: update the page, the changelog's Format line and perhaps the format version.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crc32c::{crc32c, crc32c_append};
use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::media::{AnyMedium, Mapped, OpenError, OpenOptions, create_path, open_path};
use farbank_pm::{Kind, Medium, Off};
use farbank_store::{GroupDecision, Key, Session, Value};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// Bytes of a segment.
const S: usize = 4096;
/// Bytes of a segment without its head, map and tail.
const PAYLOAD: usize = S - 128 - MAP;
/// Bytes of a segment's map.
const MAP: usize = 64;
/// Offset of the first segment.
const F: usize = 8192;
/// Bytes of the pool. It has few segments, so that sessions keep one open segment.
const POOL: usize = F + 60 * S;

/// The bytes of a pool, decoded as docs/format.md describes them.
struct Bytes(Vec<u8>);

impl Bytes {
    /// Returns the bytes of a new pool after `fill` has written to it and its session was dropped. `close`: whether the
    /// pool is closed cleanly.
    fn of(close: bool, fill: impl FnOnce(&mut dyn Session)) -> Bytes {
        let config = Config {
            clock: Arc::new(|| 1_000_000),
            uptime: Arc::new(|| 0),
            cleaning: CleaningMode::Inline,
            ..Config::default()
        };
        let medium = Mapped::anonymous(POOL as u64).unwrap();
        let kv = Kv::create(medium, S as u64, config).unwrap();
        let mut session = kv.session();
        fill(session.as_mut());
        session.commit().unwrap();
        drop(session);
        let medium = match close {
            true => kv.close().unwrap().unwrap(),
            false => kv.into_medium().unwrap(),
        };
        let mut bytes = vec![0; POOL];
        medium.copy_out(Off(0), &mut bytes);
        Bytes(bytes)
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn pool_key(&self) -> u64 {
        xxh3_64_with_seed(&self.0[40..56], 1)
    }

    fn root(&self, word: usize) -> u64 {
        self.u64(128 + 8 * word)
    }

    fn generation(&self, segment: usize) -> u64 {
        self.u64(F + segment * S + 8)
    }

    /// The seed of a record's head checksum.
    fn seed(&self, at: usize) -> u32 {
        let base = F + (at - F) / S * S;
        let mut life = self.u64(base + 8).to_le_bytes().to_vec();
        life.extend_from_slice(&(self.u64(base + 40) >> 8 & 0xff_ffff).to_le_bytes());
        let seed = xxh3_64_with_seed(&life, self.pool_key() ^ (base as u64).rotate_left(32));
        seed as u32 ^ (at - base) as u32
    }

    /// Decodes the record at `at`, after checking its head checksum.
    fn record(&self, at: usize) -> Record {
        let shape = self.u64(at + 16);
        let bit = |n: u32| shape >> n & 1 == 1;
        let header = 24 + 8 * usize::from(bit(58)) + 8 * usize::from(bit(59));
        let crc = crc32c_append(self.seed(at), &self.0[at + 4..at + header]);
        assert_eq!(crc, self.u32(at), "head checksum at {at}");
        assert!(!bit(63), "MOVED is not set, because nothing was cleaned");
        Record {
            at,
            header,
            value_len: shape as usize & ((1 << 30) - 1),
            key_len: (shape >> 30) as usize & ((1 << 17) - 1),
            kind: (shape >> 47) as u8,
            what: (shape >> 55) as u8 & 7,
            large: bit(60),
            settled: bit(61),
            member: bit(62),
            seq: self.u64(at + 8),
        }
    }

    /// Returns the key of a record and the `body` bytes after it, after checking the body checksum.
    fn body(&self, record: &Record, body: usize) -> (&[u8], &[u8]) {
        let from = record.at + record.header;
        let all = &self.0[from..from + record.key_len + body];
        assert_eq!(crc32c(all), self.u32(record.at + 4), "body checksum");
        all.split_at(record.key_len)
    }
}

#[derive(Debug)]
struct Record {
    at: usize,
    header: usize,
    value_len: usize,
    key_len: usize,
    kind: u8,
    what: u8,
    large: bool,
    settled: bool,
    member: bool,
    seq: u64,
}

impl Record {
    /// Returns the offset of the next record, if `body` bytes follow the key of this one.
    fn end(&self, body: usize) -> usize {
        self.at + (self.header + self.key_len + body).next_multiple_of(16)
    }
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn put(session: &mut dyn Session, name: &[u8], bytes: &[u8]) {
    let value = Value {
        bytes,
        ..Value::default()
    };
    session.put(key(name), value).unwrap();
}

fn commit(session: &mut dyn Session) {
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
}

#[test]
fn the_superblock_names_the_file_from_an_open_to_a_clean_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let options = OpenOptions {
        medium: Some(Kind::File),
        ..OpenOptions::default()
    };
    let file = |medium: Result<AnyMedium, OpenError>| match medium.unwrap() {
        AnyMedium::File(file) => file,
        AnyMedium::Mapped(_) => panic!("a file was asked for"),
    };
    let inode = || std::fs::metadata(&path).unwrap().ino();
    let named = || {
        let bytes = Bytes(std::fs::read(&path).unwrap());
        [0, 4096].map(|copy| [448, 464, 488].map(|word| bytes.u64(copy + word)))
    };
    let made = create_path(&path, POOL as u64, &options, &mut |_, _| {});
    let kv = Kv::create(file(made), S as u64, Config::default()).unwrap();
    assert_eq!(named(), [[inode(), 0, 0]; 2]);
    drop(kv.close().unwrap());
    assert_eq!(named(), [[0; 3]; 2]);
    let kv = Kv::open(file(open_path(&path, &options)), Config::default()).unwrap();
    assert_eq!(named(), [[inode(), 0, 0]; 2]);
    drop(kv.into_medium());
    assert_eq!(named(), [[inode(), 0, 0]; 2], "as after a crash");
}

#[test]
fn the_superblock_and_its_root_words_are_as_documented() {
    let pool = Bytes::of(false, |session| put(session, b"a", b"1"));
    for at in [0, 4096] {
        assert_eq!(&pool.0[at..at + 8], b"FARBANK\n");
        assert_eq!((pool.u32(at + 8), pool.u32(at + 12)), (2, 512));
        assert_eq!([16, 24, 32].map(|bits| pool.u64(at + bits)), [0; 3]);
        assert_eq!(pool.u64(at + 56), S as u64);
        assert_eq!(pool.u64(at + 64), 60);
        let checksum = xxh3_128(&pool.0[at..at + 496]).to_le_bytes();
        assert_eq!(&pool.0[at + 496..at + 512], checksum);
    }
    assert_eq!(pool.0[..512], pool.0[4096..4608]);
    // No snapshot; floor 0; open epoch 1; all segments are initialised.
    let words = [0, 1, 2, 4, 5].map(|word| pool.root(word));
    assert_eq!(words, [0, 0, 0, 1, 60]);
}

#[test]
fn head_and_tail_of_a_segment_are_as_documented() {
    let pool = Bytes::of(false, |session| put(session, b"a", b"1"));
    for (segment, used) in [(0, true), (1, false)] {
        let (head, tail) = (F + segment * S, F + segment * S + S - 64);
        let generation = pool.0[head + 8..head + 16].to_vec();
        for copy in [head, tail] {
            let seed = xxh3_64_with_seed(&(copy as u64).to_le_bytes(), pool.pool_key()) as u32;
            assert_eq!(&pool.0[copy..copy + 4], b"FBsg");
            assert_eq!(pool.u32(copy + 4), crc32c_append(seed, &generation));
            assert_eq!(pool.0[copy + 8..copy + 16], generation);
        }
        let (opened, sealed) = (pool.u64(head + 32), pool.u64(head + 48));
        assert_eq!(opened, pool.u64(head + 40), "the two copies are equal");
        if !used {
            assert_eq!((opened, sealed), (0, 0));
            continue;
        }
        let life = crc32c(&generation);
        let low = opened as u32;
        assert_eq!(
            (low & 0xff, low >> 8),
            (1, 1),
            "purpose: records; open epoch: 1"
        );
        assert_eq!(
            (opened >> 32) as u32,
            crc32c_append(life, &low.to_le_bytes())
        );
        let end = sealed as u32;
        assert_eq!(end as usize, 64 + 32, "one record of 32 bytes");
        assert_eq!(
            (sealed >> 32) as u32,
            crc32c_append(life, &end.to_le_bytes())
        );
    }
}

#[test]
fn records_are_encoded_as_documented() {
    let pool = Bytes::of(false, |session| {
        put(session, b"greeting", b"hello");
        let value = Value {
            bytes: b"full",
            expires_ms: 9_000_000,
            flags: 0xabcd,
            kind: 7,
        };
        session.put(Key { db: 3, bytes: b"k" }, value).unwrap();
        commit(session);
        assert!(session.delete(key(b"greeting")).unwrap());
        commit(session);
    });
    let plain = pool.record(F + 64);
    assert_eq!((plain.header, plain.what, plain.kind), (24, 1, 0));
    assert!(!plain.settled && !plain.large && !plain.member);
    assert_eq!(
        pool.body(&plain, plain.value_len),
        (&b"greeting"[..], &b"hello"[..])
    );

    let full = pool.record(plain.end(5));
    assert_eq!((full.header, full.what, full.kind), (40, 1, 7));
    assert_eq!(pool.u64(full.at + 24), 9_000_000);
    assert_eq!(pool.u64(full.at + 32), 3 << 32 | 0xabcd);
    assert_eq!(pool.body(&full, full.value_len), (&b"k"[..], &b"full"[..]));

    let tomb = pool.record(full.end(4));
    assert_eq!((tomb.what, tomb.value_len), (2, 8));
    assert!(tomb.settled, "the first record of a later batch is SETTLED");
    assert!(tomb.seq > plain.seq);
    assert_eq!(pool.body(&tomb, 8).0, b"greeting");
}

#[test]
fn a_group_is_a_record_of_records() {
    let pool = Bytes::of(false, |session| {
        let keys = [key(b"one"), key(b"two")];
        let done = session.group(&keys, &mut |ops| {
            for key in keys {
                ops.put(
                    key,
                    Value {
                        bytes: key.bytes,
                        ..Value::default()
                    },
                )?;
            }
            Ok(GroupDecision::Apply)
        });
        assert_eq!(done, Ok(GroupDecision::Apply));
    });
    let group = pool.record(F + 64);
    assert_eq!((group.what, group.key_len, group.header), (3, 8, 24));
    assert_eq!(group.value_len, 2 * 32);
    assert_eq!(pool.body(&group, group.value_len).0, [0; 8]);
    for (number, name) in [b"one", b"two"].into_iter().enumerate() {
        let member = pool.record(group.at + 32 + number * 32);
        assert!(member.member && member.what == 1);
        assert_eq!(pool.body(&member, 3), (&name[..], &name[..]));
    }
}

#[test]
fn a_large_value_is_a_table_of_segments() {
    let value: Vec<u8> = (0..PAYLOAD + 100).map(|i| i as u8).collect();
    let pool = Bytes::of(false, |session| put(session, b"large", &value));
    let segment = (0..60)
        .find(|s| pool.u64(F + s * S + 40) & 0xff == 1)
        .unwrap();
    let record = pool.record(F + segment * S + 64);
    assert!(record.large && record.what == 1);
    assert_eq!(record.value_len, value.len());
    let (_, table) = pool.body(&record, 2 * 16);
    let mut left = &value[..];
    for entry in table.chunks(16) {
        let number = u32::from_le_bytes(entry[..4].try_into().unwrap()) as usize;
        let piece = &left[..left.len().min(PAYLOAD)];
        let at = F + number * S;
        assert_eq!(&pool.0[at + 64..at + 64 + piece.len()], piece);
        assert_eq!(entry[4..8], crc32c(piece).to_le_bytes());
        assert_eq!(entry[8..], pool.generation(number).to_le_bytes());
        assert_eq!(pool.u64(at + 40) & 0xff, 2, "opened as an extent");
        left = &left[piece.len()..];
    }
    assert!(left.is_empty());
}

#[test]
fn a_clean_close_writes_a_snapshot_as_documented() {
    let pool = Bytes::of(true, |session| put(session, b"a", b"1"));
    let (mut next, mut generation) = (pool.root(0), pool.root(1));
    let mut bytes = Vec::new();
    while next != 0 {
        let segment = next as usize - 1;
        assert_eq!(pool.generation(segment), generation);
        let at = F + segment * S;
        assert_eq!(pool.u64(at + 40) & 0xff, 3, "opened for a snapshot");
        let len = pool.u64(at + 64 + 16) as usize;
        let piece = &pool.0[at + 96..at + 96 + len];
        let crc = crc32c_append(crc32c(&pool.0[at + 64..at + 88]), piece);
        assert_eq!(pool.u64(at + 88), u64::from(crc));
        bytes.extend_from_slice(piece);
        (next, generation) = (pool.u64(at + 64), pool.u64(at + 72));
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(
        word(0),
        pool.record(F + 64).seq,
        "the highest sequence number"
    );
    assert_eq!((word(8), word(16)), (1, 0), "keys of databases 0 and 1");
    assert_eq!(word(136), 60, "segments");
    let first = 144;
    assert_eq!(word(first), pool.generation(0));
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    // Live bytes, tombstone bytes, end, live records, state, large groups.
    let counts = [24, 28, 32, 36, 40, 44].map(|at| half(first + at));
    assert_eq!(counts, [32, 0, 96, 1, 2, 0]);
    let index = first + 60 * 48;
    let groups = word(index) as usize;
    let lines = bytes[index + 8..].chunks(2).take(groups);
    let lines: u64 = lines
        .map(|n| u64::from(u16::from_le_bytes([n[0], n[1]])))
        .sum();
    let rows = index + 8 + 2 * groups;
    assert_eq!(bytes.len() as u64, rows as u64 + 64 * lines);
    let entries: Vec<u64> = (rows..bytes.len())
        .step_by(8)
        .map(word)
        .filter(|e| *e != 0)
        .collect();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0] & ((1 << 38) - 1)) << 4, (F + 64) as u64);
}
