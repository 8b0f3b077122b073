//! [`ServerAddress`]: how a compute server reaches a memory server.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The way to a memory server. As text: `IP:PORT`, `shm:PATH` for the file of a server of the same host, or `libfabric:IP:PORT`; `-` for a
/// server that has left.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ServerAddress {
    /// By TCP.
    Tcp(SocketAddr),
    /// By the file of its memory.
    Shm(PathBuf),
    /// Over libfabric. The address is that of the server's socket, over which it tells the address of its endpoint.
    Libfabric(SocketAddr),
    /// Not at all: the server is not used any more.
    Left,
}

/// A text that is no [`ServerAddress`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadServerAddress(String);

impl fmt::Display for BadServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "{text:?} is no address of a memory server, expected IP:PORT, shm:PATH or libfabric:IP:PORT, or - for a server that has left"
        )
    }
}

impl std::error::Error for BadServerAddress {}

const SHM: &str = "shm:";
const LIBFABRIC: &str = "libfabric:";
const LEFT: &str = "-";

impl FromStr for ServerAddress {
    type Err = BadServerAddress;

    fn from_str(text: &str) -> Result<ServerAddress, BadServerAddress> {
        let bad = || BadServerAddress(text.to_owned());
        if let Some(address) = text.strip_prefix(LIBFABRIC) {
            let address = address.parse().map(ServerAddress::Libfabric);
            return address.map_err(|_| bad());
        }
        if text == LEFT {
            return Ok(ServerAddress::Left);
        }
        match text.strip_prefix(SHM) {
            Some("") => Err(bad()),
            Some(path) => Ok(ServerAddress::Shm(path.into())),
            None => text.parse().map(ServerAddress::Tcp).map_err(|_| bad()),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp(address) => address.fmt(f),
            ServerAddress::Shm(path) => write!(f, "{SHM}{}", path.display()),
            ServerAddress::Libfabric(address) => write!(f, "{LIBFABRIC}{address}"),
            ServerAddress::Left => f.write_str(LEFT),
        }
    }
}

impl From<SocketAddr> for ServerAddress {
    fn from(address: SocketAddr) -> ServerAddress {
        ServerAddress::Tcp(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_socket_or_a_file() {
        let texts = [
            "127.0.0.1:7411",
            "[::1]:9",
            "shm:/dev/shm/memory0",
            "shm:m",
            "libfabric:127.0.0.1:7411",
            "-",
        ];
        for text in texts {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "--",
            "shm:",
            "/dev/shm/memory0",
            "127.0.0.1",
            "host:1",
            "libfabric:",
            "libfabric:/m",
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("expected IP:PORT, shm:PATH or libfabric:IP:PORT")
            );
        }
    }
}
