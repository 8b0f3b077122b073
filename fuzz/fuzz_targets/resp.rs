//! Requests cut into reads at places the fuzzer chooses: they are the same requests, or the same error.
#![no_main]

use farbank_fuzz::{Input, cut, resp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cut(Input(data), resp::hear));
