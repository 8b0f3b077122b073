//! Splits memcached requests into reads at places that the fuzzer chooses. The requests and their end must be the same.
#![no_main]

use farbank_fuzz::{Input, cut, memcached};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cut(Input(data), memcached::hear));
