//! Restores payloads of RESTORE: any bytes, and any bytes with a correct footer. A restored string is within the limit, and
//! its own payload restores it again.
#![no_main]

use farbank_fuzz::Input;
use farbank_server::rdb::{PayloadError, dump_string, put_footer, restore_string};
use libfuzzer_sys::fuzz_target;

/// Longest string that the target accepts.
const BYTES_MAX: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut payload = Vec::new();
    match input.below(4) {
        0 => payload.extend_from_slice(input.0),
        1 => {
            payload.extend_from_slice(input.0);
            put_footer(&mut payload);
        }
        _ => {
            payload.push(0);
            payload.extend_from_slice(input.0);
            put_footer(&mut payload);
        }
    }
    match restore_string(&payload, BYTES_MAX) {
        Ok(value) => {
            assert!(value.len() <= BYTES_MAX);
            let again = dump_string(&value);
            assert_eq!(restore_string(&again, BYTES_MAX).as_deref(), Ok(&value[..]));
        }
        Err(PayloadError::TooLong(bytes)) => assert!(bytes > BYTES_MAX as u64),
        Err(_) => {}
    }
});
