//! Splits Redis requests into reads at places that the fuzzer chooses. The requests, or the error, must be the same.
#![no_main]

use farbank_fuzz::{Input, cut, resp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cut(Input(data), resp::hear));
