//! memcached's requests cut into reads at places the fuzzer chooses: they are the same requests, and end alike.
#![no_main]

use farbank_fuzz::{Input, cut, memcached};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cut(Input(data), memcached::hear));
