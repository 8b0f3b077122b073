//! Reads RDB files: any bytes, and any bytes behind a correct header. Every string is within the limit. What was read
//! before an error, written again, is read back.
#![no_main]

use farbank_fuzz::Input;
use farbank_server::rdb::reader::{RdbEntry, RdbReader};
use farbank_server::rdb::writer::{RdbString, RdbWriter};
use libfuzzer_sys::fuzz_target;

/// Longest string that the target accepts.
const BYTES_MAX: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut file = match input.below(4) {
        0 => Vec::new(),
        _ => b"REDIS0010".to_vec(),
    };
    file.extend_from_slice(input.0);
    let Ok(mut reader) = RdbReader::new(&file[..], BYTES_MAX) else {
        return;
    };
    let mut writer = RdbWriter::new(Vec::new(), true, &[]).expect("a vector is never full");
    let mut kept: Vec<(u32, Vec<u8>, Vec<u8>, u64)> = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        if let RdbEntry::String(found) = entry {
            assert!(found.key.len() <= BYTES_MAX && found.value.len() <= BYTES_MAX);
            writer.string(&found).expect("a vector is never full");
            kept.push((
                found.db,
                found.key.to_vec(),
                found.value.to_vec(),
                found.expires_ms,
            ));
        }
    }
    let (again, _) = writer.finish().expect("a vector is never full");
    let mut reader = RdbReader::new(&again[..], BYTES_MAX).expect("the header is correct");
    let mut expected = kept.iter();
    while let Some(entry) = reader.next_entry().expect("the file is correct") {
        let RdbEntry::String(RdbString {
            db,
            key,
            value,
            expires_ms,
            ..
        }) = entry
        else {
            panic!("only strings were written");
        };
        let (of, name, bytes, expiry) = expected.next().expect("no entry is added");
        assert_eq!(
            (db, key, value, expires_ms),
            (*of, &name[..], &bytes[..], *expiry)
        );
    }
    assert!(expected.next().is_none());
});
