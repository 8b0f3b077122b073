//! A Unix socket for Redis clients: made without a moment in which others could connect, removed at the end.
//!
//! ```text
//!   lock the folder ─▶ is something at the path? ─▶ fchmod the socket ─▶ bind ─▶ chmod the path
//!                        no socket: refused
//!                        a server's: refused
//!                        left by a killed server: removed
//! ```
//!
//! The mode is given to the socket before it has a name: the kernel makes the file with that mode less the
//! umask, so that it is never wider than asked for. What the umask took is given back by the last step.
//!
//! A socket is a server's if connecting to it works, or if the kernel lists it as bound: a server that still
//! recovers its pool is bound and does not listen yet. The lock on the folder keeps two starting servers from
//! taking each other's socket for one that was left.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use mio::net::{TcpStream, UnixStream};
use rustix::fs::{FlockOperation, Mode};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

/// A Unix socket to listen on, for Redis clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnixSocket {
    /// Where it is.
    pub path: PathBuf,
    /// Its permissions: who may connect needs to be able to write.
    pub mode: u32,
}

/// A socket that was bound. Its file is removed when this is dropped.
pub(crate) struct BoundSocket {
    listener: StdListener,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // It goes stale otherwise, and the next start removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl BoundSocket {
    /// Binds `socket`. Nothing can connect before [`Bound::listen`].
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another server has it, [`io::ErrorKind::AlreadyExists`] if something else is
    /// at the path; what the system calls said.
    pub(crate) fn new(socket: &UnixSocket) -> io::Result<BoundSocket> {
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
        };
        fs::set_permissions(&bound.path, fs::Permissions::from_mode(socket.mode))?;
        Ok(bound)
    }

    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        SockRef::from(&self.listener).listen(backlog)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The listener for the poll.
    pub(crate) fn listener(&self) -> io::Result<mio::net::UnixListener> {
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
        let what = "something that is no socket is there";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    let refused = match StdStream::connect(path) {
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        Ok(_) => false,
    };
    let bound = fs::read_to_string("/proc/net/unix")?;
    if !refused || is_listed(&bound, path) {
        let what = "another server has the socket";
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

/// The connection as what workers serve: reading, writing and polling are the same for every stream.
pub(crate) fn as_stream(stream: UnixStream) -> TcpStream {
    TcpStream::from_std(OwnedFd::from(stream).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(path: &Path, mode: u32) -> UnixSocket {
        UnixSocket {
            path: path.into(),
            mode,
        }
    }

    #[test]
    fn a_socket_has_the_mode_asked_for_and_is_removed_at_the_end() {
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
    fn a_socket_that_a_server_has_is_left_alone_though_it_does_not_listen_yet() {
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
    fn what_is_no_socket_and_what_another_has_made_is_not_removed() {
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
