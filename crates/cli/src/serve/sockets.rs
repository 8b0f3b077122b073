//! Options of the Unix sockets.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use farbank_server::{UnixSocket, WireProtocol};

#[derive(Args)]
pub(super) struct UnixSocketArgs {
    /// Also listen on this Unix socket for Redis clients. A socket that a killed server left is replaced.
    #[arg(long, value_name = "PATH")]
    unixsocket: Option<PathBuf>,
    /// Permissions of the Unix socket, in octal. A client needs write permission to connect.
    #[arg(long, value_name = "MODE", default_value = "700")]
    unixsocketperm: FileMode,
    /// Also listen on this Unix socket for memcached clients.
    #[arg(long, value_name = "PATH")]
    memcached_unixsocket: Option<PathBuf>,
    /// Permissions of the Unix socket for memcached clients, in octal.
    #[arg(long, value_name = "MODE", default_value = "700")]
    memcached_unixsocketperm: FileMode,
}

/// Permission bits of a file.
#[derive(Clone, Copy, Debug)]
struct FileMode(u32);

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<FileMode, String> {
        let mode = u32::from_str_radix(text, 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777);
        mode.map(FileMode)
            .ok_or_else(|| "permissions must be an octal number up to 777".to_owned())
    }
}

impl UnixSocketArgs {
    /// Returns the sockets.
    pub(super) fn sockets(&self) -> Vec<UnixSocket> {
        let of = |path: &Option<PathBuf>, mode: FileMode, protocol| {
            path.clone().map(|path| UnixSocket {
                path,
                mode: mode.0,
                protocol,
            })
        };
        let resp = of(&self.unixsocket, self.unixsocketperm, WireProtocol::Resp);
        let memcached = of(
            &self.memcached_unixsocket,
            self.memcached_unixsocketperm,
            WireProtocol::Memcached,
        );
        resp.into_iter().chain(memcached).collect()
    }

    /// Returns the sockets as the server announces them.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.sockets().into_iter().map(|socket| {
            let scheme = match socket.protocol {
                WireProtocol::Resp => "unix",
                WireProtocol::Memcached => "memcached+unix",
            };
            format!("{scheme}:{}", socket.path.display())
        })
    }
}
