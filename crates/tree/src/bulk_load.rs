//! Creation of a tree without clients: empty, or bulk-loaded with entries.

use farbank_fabric::GAddr;
use farbank_fabric::sim::SimCluster;

use crate::config::Config;
use crate::key::Key;
use crate::page::{NodeEntry, NodeHeader, NodePage, NodeState};
use crate::superblock::{RESERVED_BYTES, ROOT, mark};

/// The destination of the nodes of a new tree.
pub trait FillTarget {
    /// Writes `bytes` at `at`.
    fn put(&mut self, at: GAddr, bytes: &[u8]);

    /// Reserves the host memory of `server` up to byte `at`.
    fn taken(&mut self, server: u16, at: u64);
}

/// Writes directly into the simulated memory, without verbs and in no simulated time.
impl FillTarget for &SimCluster {
    fn put(&mut self, at: GAddr, bytes: &[u8]) {
        self.poke(at, bytes);
    }

    fn taken(&mut self, server: u16, at: u64) {
        self.reserve_host_memory(server, at);
    }
}

struct BulkLoader<'a> {
    config: &'a Config,
    place: &'a mut dyn FillTarget,
    /// The next free byte of each server.
    next: Vec<u64>,
    made: usize,
}

/// Creates a tree of `entries`, sorted by key, on `servers` memory servers. Every node is filled to `share` (0 to 1).
/// Nodes are placed on the servers in turn.
pub fn fill<K: Into<Key>>(
    config: &Config,
    servers: u16,
    share: f64,
    entries: impl Iterator<Item = (K, u64)>,
    place: &mut dyn FillTarget,
) {
    fill_after(config, beginning(servers), share, entries, place);
}

/// Returns the first byte of a server's host memory that a new tree can use.
pub(crate) const fn first_free() -> u64 {
    RESERVED_BYTES.next_multiple_of(4096)
}

/// Returns the first free byte of each server.
pub(crate) fn beginning(servers: u16) -> Vec<u64> {
    vec![first_free(); servers.into()]
}

/// Like [`fill`], after the memory that is in use on each server, up to `next`.
pub(crate) fn fill_after<K: Into<Key>>(
    config: &Config,
    next: Vec<u64>,
    share: f64,
    entries: impl Iterator<Item = (K, u64)>,
    place: &mut dyn FillTarget,
) {
    let mut filler = BulkLoader {
        config,
        place,
        next,
        made: 0,
    };
    let entries = entries.map(|(key, value)| NodeEntry {
        key: key.into(),
        value,
    });
    let mut nodes = filler.level(0, share, entries);
    let mut level = 0;
    while nodes.len() > 1 {
        level += 1;
        nodes = filler.level(level, share, nodes.into_iter());
    }
    filler.place.put(ROOT, &nodes[0].value.to_le_bytes());
    for server in 0..filler.next.len() as u16 {
        let (at, mark) = mark(server, &config.layout);
        filler.place.put(at, &mark);
    }
    for (server, at) in filler.next.iter().enumerate() {
        filler.place.taken(server as u16, *at);
    }
}

/// Creates an empty tree.
pub fn create(config: &Config, servers: u16, place: &mut dyn FillTarget) {
    fill(
        config,
        servers,
        1.0,
        std::iter::empty::<(u64, u64)>(),
        place,
    );
}

impl BulkLoader<'_> {
    fn allocate(&mut self) -> GAddr {
        let server = self.made % self.next.len();
        self.made += 1;
        let at = self.next[server];
        self.next[server] += self.config.layout.node_bytes as u64;
        GAddr::host(server as u16, at)
    }

    /// Writes one level of nodes. Returns their lowest keys and addresses.
    fn level(
        &mut self,
        level: u8,
        share: f64,
        entries: impl Iterator<Item = NodeEntry>,
    ) -> Vec<NodeEntry> {
        let each = ((self.config.layout.entries() as f64 * share) as usize).max(2);
        let mut entries = entries.peekable();
        let mut nodes = Vec::new();
        let (mut at, mut lowest) = (self.allocate(), Key::LEAST);
        loop {
            let mut some: Vec<NodeEntry> = entries.by_ref().take(each).collect();
            let low = match level {
                0 => GAddr::NULL,
                // The first child has no separator.
                _ => GAddr(some.remove(0).value),
            };
            let highest = entries.peek().map(|entry| entry.key.clone());
            let sibling = match highest {
                Some(_) => self.allocate(),
                None => GAddr::NULL,
            };
            let head = NodeHeader {
                low,
                sibling,
                level,
                state: NodeState::Live,
                lowest: lowest.clone(),
                highest: highest.clone(),
            };
            let mut page = NodePage::new(self.config.layout, &head, 0);
            page.refill(&some);
            page.seal();
            self.place.put(at, &page.bytes);
            nodes.push(NodeEntry {
                key: lowest,
                value: at.0,
            });
            let Some(key) = highest else {
                return nodes;
            };
            (at, lowest) = (sibling, key);
        }
    }
}
