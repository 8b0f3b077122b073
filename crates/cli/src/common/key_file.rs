//! The file with the key of a cluster of memory servers.

use std::fs;
use std::path::Path;

use farbank_fabric::tcp::{KEY_BYTES_MIN, SharedKey};

use crate::common::Failure;

/// Reads the key. A newline at the end of the file does not belong to it.
pub(crate) fn read_key(path: &Path) -> Result<SharedKey, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("key file {}: {error}", path.display()))
    };
    let mut bytes = fs::read(path).map_err(|error| failed(&error))?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    let len = bytes.len();
    SharedKey::new(bytes).ok_or_else(|| {
        failed(&format!(
            "the key has {len} bytes, expected at least {KEY_BYTES_MIN}"
        ))
    })
}
