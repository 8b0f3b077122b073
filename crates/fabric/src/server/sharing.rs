//! The words of a memory's header with which processes of the same host find the memory server and see that it serves.
//!
//! ```text
//!   SHARING_AT  0             8             16    24    32              40
//!               │ generation  │ port, kind  │ address   │ PID namespace │ hash of the path │
//!               └ 0: no process serves the memory
//! ```

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use farbank_pm::{Medium, Off, PersistCtx, WORD};
use sha2::{Digest, Sha256};

use super::memory::{SHARING_AT, WordMemory};

const SERVING_AT: Off = Off(SHARING_AT);
const PORT_AT: Off = Off(SHARING_AT + 8);
const ADDRESS_AT: [Off; 2] = [Off(SHARING_AT + 16), Off(SHARING_AT + 24)];
const NAMESPACE_AT: Off = Off(SHARING_AT + 32);
const PATH_AT: Off = Off(SHARING_AT + 40);
/// Kinds of an address, above the bits of the port.
const IPV4: u64 = 4 << 16;
const IPV6: u64 = 6 << 16;

/// How to reach the server of a shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SharingInfo {
    /// Address of the server's socket, for requests to its service thread.
    pub(crate) control: SocketAddr,
    /// The server's PID namespace. Process ids of another one mean other processes.
    pub(crate) pid_namespace: u64,
    /// Hash of the path by which the server knows the file. The files of `redo` are beside it.
    pub(crate) path_hash: u64,
}

/// Returns the hash of a path without symbolic links.
pub(crate) fn path_hash(path: &Path) -> u64 {
    let hash = Sha256::digest(path.as_os_str().as_bytes());
    u64::from_le_bytes(*hash.first_chunk().expect("a hash has 32 bytes"))
}

/// Returns the inode of this process's PID namespace; 0 if /proc does not show it.
pub(crate) fn own_pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

impl<M: Medium> WordMemory<M> {
    /// Shows to processes of this host that the server of this memory, which is in the file `path`, listens on `address`.
    pub(crate) fn begin_sharing(&self, ctx: &mut PersistCtx, address: SocketAddr, path: &Path) {
        let (kind, bytes) = match address.ip() {
            IpAddr::V4(ip) => (IPV4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (IPV6, ip.octets()),
        };
        let medium = self.medium();
        for (at, half) in ADDRESS_AT.into_iter().zip(bytes.chunks_exact(8)) {
            let half = half.try_into().expect("the chunk has 8 bytes");
            medium.store(ctx, at, u64::from_le_bytes(half));
        }
        medium.store(ctx, PORT_AT, kind | u64::from(address.port()));
        medium.store(ctx, NAMESPACE_AT, own_pid_namespace());
        medium.store(ctx, PATH_AT, path_hash(path));
        medium.store(ctx, SERVING_AT, self.generation());
    }

    /// Shows that no server serves this memory any more, if no newer one has begun.
    pub(crate) fn end_sharing(&self, ctx: &mut PersistCtx) {
        // A word of a file that was truncated meanwhile must not be accessed as a word.
        self.medium().copy_out(SERVING_AT, &mut [0; WORD]);
        if self.medium().unreadable(SERVING_AT, WORD).is_some() {
            return;
        }
        // A newer server has another generation, and the exchange fails.
        let _ = self.medium().cas(ctx, SERVING_AT, self.generation(), 0);
    }

    /// Returns whether the server process to whose generation this memory is attached serves it, as far as it has shown.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        self.medium().load(SERVING_AT) == self.generation()
    }

    /// Returns how to reach the server, or `None` if no server serves the memory.
    pub(crate) fn sharing_info(&self) -> Option<SharingInfo> {
        if !self.is_served() {
            return None;
        }
        let medium = self.medium();
        let port = medium.load(PORT_AT);
        let mut octets = [0; 16];
        for (half, at) in octets.chunks_exact_mut(8).zip(ADDRESS_AT) {
            half.copy_from_slice(&medium.load(at).to_le_bytes());
        }
        let ip = Ipv6Addr::from(octets);
        let ip = match port & !u64::from(u16::MAX) {
            IPV4 => IpAddr::V4(ip.to_ipv4_mapped()?),
            IPV6 => IpAddr::V6(ip),
            _ => return None,
        };
        Some(SharingInfo {
            control: SocketAddr::new(loopback_if_any(ip), port as u16),
            pid_namespace: medium.load(NAMESPACE_AT),
            path_hash: medium.load(PATH_AT),
        })
    }
}

/// A server that listens on all addresses is reached on loopback.
fn loopback_if_any(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::media::Mapped;

    use super::*;
    use crate::server::MemorySettings;

    #[test]
    fn the_address_of_a_server_is_shown_while_it_serves() {
        let medium = Mapped::anonymous(2 << 20).unwrap();
        let memory = WordMemory::open(medium, MemorySettings::new(0), 5).unwrap();
        let mut ctx = PersistCtx::new(0);
        assert_eq!(memory.sharing_info(), None);
        for (address, expected) in [
            ("127.0.0.1:7411", "127.0.0.1:7411"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:65535", "[::1]:65535"),
            ("[fe80::12:7]:9", "[fe80::12:7]:9"),
        ] {
            let path = Path::new("/dev/shm/m");
            memory.begin_sharing(&mut ctx, address.parse().unwrap(), path);
            let info = memory.sharing_info().unwrap();
            assert_eq!(info.control, expected.parse().unwrap());
            assert_eq!(info.pid_namespace, own_pid_namespace());
            assert_eq!(info.path_hash, path_hash(path));
            assert_ne!(info.path_hash, path_hash(Path::new("/dev/shm/n")));
        }
        memory.end_sharing(&mut ctx);
        assert_eq!(memory.sharing_info(), None);
    }
}
