//! The replacement of blocks that a pool's file shares with other files.
//!
//! A file that was copied by reference (`cp --reflink`, a snapshot of the file system) shares blocks with its
//! copy. The first overwrite of a shared block allocates new space, so a full disk would stop a pool whose space was
//! allocated at creation (PM-SPACE-2). Rewriting the same bytes at open allocates that space at once, or fails before any
//! write depends on it. A power cut at any point is harmless, because every block holds the same bytes before and
//! after.

use std::io;
use std::os::fd::BorrowedFd;

use super::extents::extents;
use super::space::{PoolFile, check_limit};

/// Returns the ranges, as offset and length, of the file's first `bytes` bytes that are in shared blocks. Empty if the
/// file system does not report extents.
fn shared(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Vec<(u64, u64)>> {
    let all = extents(file, bytes)?.unwrap_or_default();
    let shared = all.iter().filter(|extent| extent.is_shared);
    Ok(shared.map(|extent| (extent.at, extent.len)).collect())
}

/// Rewrites the shared blocks among the file's first `bytes` bytes, so that the file has blocks of its own. Durable on
/// `Ok`.
///
/// # Errors
/// The number of bytes still in shared blocks (0 if unknown), and the reason: the disk is full, a system call failed,
/// or the file system keeps sharing the blocks.
pub(super) fn unshare(file: &PoolFile, bytes: u64) -> Result<(), (u64, io::Error)> {
    let total = |parts: &[(u64, u64)]| parts.iter().map(|(_, len)| len).sum::<u64>();
    let parts = shared(file.fd(), bytes).map_err(|e| (0, e))?;
    if parts.is_empty() {
        return Ok(());
    }
    let rewritten = check_limit(bytes)
        .and_then(|()| {
            let mut parts = parts.iter();
            parts.try_for_each(|(at, len)| file.rewrite(*at..at + len))
        })
        .and_then(|()| file.sync());
    rewritten.map_err(|e| (total(&parts), e))?;
    match shared(file.fd(), bytes) {
        Ok(left) if left.is_empty() => Ok(()),
        Ok(left) => {
            let why = io::Error::other("the file system keeps sharing blocks that were rewritten");
            Err((total(&left), why))
        }
        Err(e) => Err((total(&parts), e)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_without_a_reflink_copy_shares_no_blocks() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[7; 1 << 20]).expect("a little space");
        assert_eq!(shared(file.as_fd(), 1 << 20).expect("it tells"), []);
        let pipe = io::pipe().expect("a pipe");
        let unknown = shared(pipe.0.as_fd(), 1 << 20);
        assert_eq!(unknown.expect("what does not tell shares nothing"), []);
    }
}
