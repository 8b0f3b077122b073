//! A Unix socket. It never has wider permissions than configured, and is removed at the end.
//!
//! ```text
//!   lock the folder ─▶ check for a file at the path ─▶ fchmod the socket ─▶ bind ─▶ chmod the path
//!                        not a socket: error
//!                        in use by a server: error
//!                        left by a killed server: removed
//! ```
//!
//! The mode is set on the socket before `bind`. The kernel creates the file with that mode minus the umask, so its
//! permissions are never wider than configured. The final chmod restores the bits that the umask removed.
//!
//! A socket is in use if connecting to it succeeds, or if the kernel lists it as bound. A server that still recovers
//! its pool is bound and does not listen yet. The lock on the folder prevents two starting servers from removing each
//! other's socket as stale.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use mio::net::{TcpStream, UnixStream};
use rustix::fs::{FlockOperation, Mode};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::settings::{UnixSocket, WireProtocol};

/// A socket that was bound. Its file is removed when this is dropped.
pub(super) struct BoundSocket {
    listener: StdListener,
    path: PathBuf,
    protocol: WireProtocol,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // If this fails, the socket is stale and the next start removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl BoundSocket {
    /// Binds `socket`. No client can connect before [`BoundSocket::listen`].
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another server uses the socket; [`io::ErrorKind::AlreadyExists`] if the path is
    /// not a socket; errors of system calls.
    pub(super) fn new(socket: &UnixSocket) -> io::Result<BoundSocket> {
        let path = std::path::absolute(&socket.path)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let folder = fs::File::open(folder)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
        remove_stale(&path)?;
        let unbound = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        unbound.set_nonblocking(true)?;
        rustix::fs::fchmod(&unbound, Mode::from_raw_mode(socket.mode))?;
        unbound.bind(&SockAddr::unix(&path)?)?;
        let bound = BoundSocket {
            listener: OwnedFd::from(unbound).into(),
            file: identity(&path)?,
            path,
            protocol: socket.protocol,
        };
        fs::set_permissions(&bound.path, fs::Permissions::from_mode(socket.mode))?;
        Ok(bound)
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        SockRef::from(&self.listener).listen(backlog)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the protocol of its clients.
    pub(super) fn protocol(&self) -> WireProtocol {
        self.protocol
    }

    /// Returns a listener that can be polled.
    pub(super) fn listener(&self) -> io::Result<mio::net::UnixListener> {
        Ok(mio::net::UnixListener::from_std(self.listener.try_clone()?))
    }
}

/// Removes a socket that a killed server left at `path`.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        let what = "the path exists and is not a socket; remove the file or choose another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    let refused = match StdStream::connect(path) {
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        Ok(_) => false,
    };
    let bound = fs::read_to_string("/proc/net/unix")?;
    if !refused || is_listed(&bound, path) {
        let what = "another server uses this socket";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    }
    fs::remove_file(path)
}

/// Whether a line of `/proc/net/unix` ends with `path`, after `Num RefCount Protocol Flags Type St Inode`.
fn is_listed(bound: &str, path: &Path) -> bool {
    const FIELDS_BEFORE: usize = 7;
    let Some(path) = path.to_str() else {
        return false;
    };
    bound.lines().any(|line| {
        let mut rest = line;
        for _ in 0..FIELDS_BEFORE {
            rest = rest.trim_start();
            rest = rest.find(' ').map_or("", |end| &rest[end..]);
        }
        rest.strip_prefix(' ') == Some(path)
    })
}

/// Converts a connection to the stream type of the workers. Reading, writing and polling work the same for both.
pub(super) fn as_stream(stream: UnixStream) -> TcpStream {
    TcpStream::from_std(OwnedFd::from(stream).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(path: &Path, mode: u32) -> UnixSocket {
        UnixSocket {
            path: path.into(),
            mode,
            protocol: WireProtocol::Resp,
        }
    }

    #[test]
    fn a_socket_has_the_configured_mode_and_is_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for mode in [0o700, 0o777, 0o770, 0o600] {
            let bound = BoundSocket::new(&socket(&path, mode)).unwrap();
            let found = fs::metadata(&path).unwrap().mode() & 0o777;
            assert_eq!(found, mode, "{found:o}");
            drop(bound);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_socket_that_a_killed_server_left_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists());
        BoundSocket::new(&socket(&path, 0o700)).unwrap();
    }

    #[test]
    fn a_bound_socket_of_another_server_is_kept_even_before_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = BoundSocket::new(&socket(&path, 0o700)).unwrap();
        for _ in 0..2 {
            let refused = BoundSocket::new(&socket(&path, 0o700)).err().unwrap();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
            first.listen(1).unwrap();
        }
        StdStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        fs::write(&path, "precious").unwrap();
        let refused = BoundSocket::new(&socket(&path, 0o700)).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        let bound = BoundSocket::new(&socket(&path, 0o700)).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(bound);
        assert!(path.exists());
    }

    #[test]
    fn bound_sockets_are_found_in_the_kernels_list() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 21037 /run/a b\n\
                    0000000000000000: 00000003 00000000 00000000 0001 03 17\n";
        assert!(is_listed(list, Path::new("/run/a b")));
        assert!(!is_listed(list, Path::new("/run/a")));
        assert!(!is_listed(list, Path::new("b")));
    }
}
