//! The list of memory servers: which of them get new nodes, and which are leaving or have left.
//!
//! ```text
//!   server 0, byte 168  │ announced 2 │ in use 2 │ leaving + 1: 2 │ 0 2 │          one word
//!             byte 256  │ a bit for each of 256 servers that has left: 32 bytes │
//!
//!   joining   announced + 1 ──▶ sessions begin that know the server ──▶ in use + 1         (`cluster::joining`)
//!   leaving   leaving ──▶ nodes and values move (`drain`) ──▶ has left ──▶ sessions begin without the server ──▶ leaving: 0
//! ```
//!
//! A word of zeros stands for the servers of the creation. Each change is a write of one word, by one client at a time
//! (TREE-JOIN-3).
//!
//! # Invariants
//! TREE-LIST-1  A client that places a node on another server than that of the node that it has locked does so after it has taken
//!     the lock, by a copy of the list that is at most [`Config::list_ns_max`](crate::Config::list_ns_max) old. So when a server has been
//!     leaving for longer, an operation that takes a lock from then on places nothing there.

use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::{Fabric, GAddr, Nanos, Verb};

use crate::error::TreeError;

/// The numbers of servers.
const NUMBERS: GAddr = GAddr::host(LEASE_SERVER, 168);
/// The bits of the servers that have left.
const LEFT: GAddr = GAddr::host(LEASE_SERVER, 256);
const LEFT_BYTES: usize = 32;
/// Maximum number of memory servers of a tree, including those that have left.
pub(crate) const SERVERS_MAX: u16 = 256;
/// Maximum number of servers that join a tree.
pub(crate) const JOINED_MAX: u16 = 96;

/// The list of memory servers, as a client has read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerList {
    /// Servers that every session must know, including those that have left.
    pub(crate) announced: u16,
    /// Servers before this one get new nodes, except those that are leaving or have left.
    pub(crate) in_use: u16,
    /// The server that is leaving.
    pub(crate) leaving: Option<u16>,
    left: [u8; LEFT_BYTES],
}

impl ServerList {
    /// Returns the list of a tree that was created on `servers` servers.
    pub(crate) fn of_created(servers: u16) -> ServerList {
        ServerList {
            announced: servers,
            in_use: servers,
            leaving: None,
            left: [0; LEFT_BYTES],
        }
    }

    /// Returns this list with other numbers of servers.
    pub(crate) fn with_numbers(self, announced: u16, in_use: u16) -> ServerList {
        ServerList {
            announced,
            in_use,
            ..self
        }
    }

    /// Returns this list with another server, or none, that is leaving.
    pub(crate) fn with_leaving(self, leaving: Option<u16>) -> ServerList {
        ServerList { leaving, ..self }
    }

    /// Returns whether `server` has left.
    pub(crate) fn has_left(&self, server: u16) -> bool {
        let byte = self.left.get(usize::from(server / 8));
        byte.is_some_and(|byte| byte & 1 << (server % 8) != 0)
    }

    /// Returns the servers that have left.
    pub(crate) fn left(&self) -> impl Iterator<Item = u16> + use<> {
        let list = *self;
        (0..list.announced).filter(move |server| list.has_left(*server))
    }

    /// Returns whether `server` gets new nodes.
    pub(crate) fn takes_nodes(&self, server: u16) -> bool {
        server < self.in_use && self.leaving != Some(server) && !self.has_left(server)
    }

    /// Returns the servers that get new nodes, from the one after `server` on.
    pub(crate) fn after(&self, server: u16) -> impl Iterator<Item = u16> + use<> {
        let list = *self;
        let next = (1..=list.in_use).map(move |n| (server + n) % list.in_use);
        next.filter(move |server| list.takes_nodes(*server))
    }

    fn encode(&self) -> u64 {
        let leaving = self.leaving.map_or(0, |server| server + 1);
        u64::from(self.announced) | u64::from(self.in_use) << 16 | u64::from(leaving) << 32
    }

    /// Returns the list of a tree that was created on `created` servers. `None`: the bytes are damaged.
    fn decode(word: u64, left: [u8; LEFT_BYTES], created: u16) -> Option<ServerList> {
        let list = match word {
            0 => ServerList::of_created(created),
            _ => ServerList {
                announced: word as u16,
                in_use: (word >> 16) as u16,
                leaving: ((word >> 32) as u16).checked_sub(1),
                left: [0; LEFT_BYTES],
            },
        };
        let waiting = list.announced.checked_sub(list.in_use);
        let is_valid = word >> 48 == 0
            && (created..=SERVERS_MAX).contains(&list.in_use)
            && waiting.is_some_and(|count| count <= 1)
            && list.announced - created <= JOINED_MAX
            && list
                .leaving
                .is_none_or(|server| (1..list.in_use).contains(&server));
        let list = ServerList { left, ..list };
        let are_listed = (0..SERVERS_MAX)
            .all(|server| !list.has_left(server) || (1..list.in_use).contains(&server));
        (is_valid && are_listed).then_some(list)
    }
}

/// Reads the list of a tree that was created on `created` servers.
///
/// # Errors
/// An error of the fabric; [`TreeError::Damaged`]: the bytes are no list.
pub(crate) async fn read_list<F: Fabric>(
    fabric: &F,
    created: u16,
) -> Result<ServerList, TreeError> {
    let verbs = vec![Verb::read(NUMBERS, 8), Verb::read(LEFT, LEFT_BYTES)];
    let mut done = fabric.batch(LEASE_SERVER, verbs).await?;
    let left = done.remove(1).into_bytes();
    let word = done.remove(0).into_bytes();
    let word = u64::from_le_bytes(*word.first_chunk().expect("a word was read"));
    let left = *left.first_chunk().expect("the bits were read");
    ServerList::decode(word, left, created).ok_or(TreeError::Damaged { at: NUMBERS })
}

/// Writes the numbers of `list` and the server that is leaving, by the one client that changes the list.
pub(crate) async fn write_numbers<F: Fabric>(
    fabric: &F,
    list: &ServerList,
) -> Result<(), TreeError> {
    let word = list.encode().to_le_bytes().to_vec();
    Ok(fabric.write(NUMBERS, word).await?)
}

/// Writes that `server` has left, by the one client that changes the list.
pub(crate) async fn write_left<F: Fabric>(
    fabric: &F,
    list: &ServerList,
    server: u16,
) -> Result<(), TreeError> {
    let at = usize::from(server / 64) * 8;
    let mut word: [u8; 8] = *list.left[at..]
        .first_chunk()
        .expect("the bits are whole words");
    word[usize::from(server % 64 / 8)] |= 1 << (server % 8);
    Ok(fabric.write(LEFT.plus(at as u64), word.to_vec()).await?)
}

/// A compute server's copy of the list.
pub(crate) struct ListCopy {
    pub(crate) list: ServerList,
    /// Number of servers at the creation of the tree. `None`: the list does not change.
    pub(crate) created: Option<u16>,
    /// Time before which the list was not read.
    pub(crate) read_ns: Nanos,
}

impl ListCopy {
    /// Creates the copy of a list that does not change: all of `servers`.
    pub(crate) fn fixed(servers: u16) -> ListCopy {
        ListCopy {
            list: ServerList::of_created(servers),
            created: None,
            read_ns: 0,
        }
    }

    /// Creates the copy of a list that was read after `read_ns`, of a tree that was created on `created` servers.
    pub(crate) fn read(list: ServerList, created: u16, read_ns: Nanos) -> ListCopy {
        ListCopy {
            list,
            created: Some(created),
            read_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(announced: u16, in_use: u16, leaving: Option<u16>) -> ServerList {
        ServerList {
            announced,
            in_use,
            leaving,
            ..ServerList::of_created(0)
        }
    }

    #[test]
    fn numbers_are_those_of_the_creation_until_the_list_changes() {
        let none = [0; LEFT_BYTES];
        assert_eq!(ServerList::decode(0, none, 2), Some(of(2, 2, None)));
        for list in [
            of(3, 2, None),
            of(3, 3, Some(1)),
            of(2, 2, Some(1)),
            of(2 + JOINED_MAX, 2 + JOINED_MAX, Some(1 + JOINED_MAX)),
        ] {
            assert_eq!(ServerList::decode(list.encode(), none, 2), Some(list));
        }
        for wrong in [
            of(0, u16::MAX, None),
            of(u16::MAX, u16::MAX, None),
            of(4, 2, None),
            of(3, 4, None),
            of(3, 1, None),
            of(2, 3, None),
            of(3, 3, Some(3)),
            of(3, 3, Some(0)),
            of(3 + JOINED_MAX, 3 + JOINED_MAX, None),
        ] {
            let decoded = ServerList::decode(wrong.encode(), none, 2);
            assert_eq!(decoded, None, "{wrong:?}");
        }
        let word = 1 << 48 | of(3, 3, None).encode();
        assert_eq!(ServerList::decode(word, none, 2), None);
    }

    #[test]
    fn servers_that_are_leaving_or_have_left_get_no_nodes() {
        let mut list = of(5, 4, Some(1));
        list.left[0] = 1 << 2;
        assert!(list.has_left(2) && !list.has_left(3) && !list.has_left(300));
        let next = |server| list.after(server).collect::<Vec<_>>();
        assert_eq!(next(0), [3, 0]);
        assert_eq!(next(1), [3, 0]);
        assert_eq!(next(3), [0, 3]);
        assert_eq!(next(4), [3, 0], "a server that is not in use yet");
    }

    #[test]
    fn only_known_servers_other_than_0_have_left() {
        for (server, is_valid) in [(0, false), (1, true), (2, true), (3, false), (255, false)] {
            let mut left = [0; LEFT_BYTES];
            left[server / 8] = 1 << (server % 8);
            let decoded = ServerList::decode(of(3, 3, None).encode(), left, 2);
            assert_eq!(decoded.is_some(), is_valid, "server {server}");
        }
    }
}
