//! [`Cluster`]: a tree on memory servers, by TCP or by shared memory, for programs that are not asynchronous.
//!
//! ```text
//!   threads of the program        Cluster (clones share it)                   memory servers
//!   ┌─────────────────────┐       ┌────────────────────────────────┐         ┌────────────────┐
//!   │ get, put, scan, ... ├──────▶│ threads: sessions, lease,      ├────────▶│ nodes, values, │
//!   │                     │◀──────┤ index cache, operations at once│◀────────┤ locks          │
//!   └─────────────────────┘       └────────────────────────────────┘         └────────────────┘
//! ```
//!
//! * `driver`: the threads, and the operations that they run. `session`: their compute server in one epoch.
//! * `error`: [`ClusterError`]. `descriptor`: the sizes of a tree, and its creation. `joining`: servers that join later. `leaving`:
//!   servers that leave.
//! * `stored_key`: keys of any bytes.
//!
//! # Invariants
//! TREE-CLUSTER-1  On `Ok` of a write, every later read of any client sees it. After an error of the fabric, the write may have
//!     taken effect, may still do so, or may never do so.
//! TREE-CLUSTER-2  A session leaves its epoch only if none of its requests has failed. So no lock of the epoch is held, and no
//!     request of it can follow (LEASE-6 of `farbank_fabric::server`).
//! TREE-CLUSTER-3  A read that fails with an error of the fabric is repeated once, in a new session. A write is never repeated.
//!
//! # Limits
//! * A tree has a maximum length of keys, at most 1,024 bytes, and each entry takes this much. Values have at most
//!   [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX) bytes.
//! * A scan is not atomic: a key that is written meanwhile may or may not be in it.
//! * All memory servers must be reachable when a session begins. Servers join ([`Cluster::add_server`]) and leave
//!   ([`Cluster::remove_server`]), except server 0. A new server gets nodes of later splits: nodes that exist do not move there.
//! * A session takes memory from the servers in chunks. At its end it leaves the unused rest to others (`spare_memory`), except
//!   for the memory of merged leaves. A session that ends with an error, or is killed, leaves nothing: its chunks are lost.

mod descriptor;
mod driver;
mod error;
mod joining;
mod leaving;
mod session;
mod stored_key;

use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use farbank_fabric::Fabric;
use farbank_fabric::shm::{ServerAddress, ShmFabric, ShmSettings};
use farbank_fabric::tcp::{ServerInfo, SharedKey, WaitMode};

pub use descriptor::{TreeDescriptor, TreeSettings};
pub use error::ClusterError;

use crate::conditional::CasOutcome;
use crate::drain::DrainCounts;
use crate::error::TreeError;
use crate::key::Key;
use crate::op_stats::OpStats;
use crate::range::Direction;
use crate::server_list::{ListCopy, ServerList};
use descriptor::create_tree;
use driver::{Driver, DriverState};
use joining::add_server;
use leaving::{keep_server, remove_server};
use session::{Session, SessionUse};
use stored_key::{LENGTH_BYTES, decode_key, encode_key};

/// A key and its value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// The settings of a [`Cluster`].
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// All memory servers, in the order of their numbers. The first is the lease server.
    pub servers: Vec<ServerAddress>,
    /// The key that all servers and clients of the cluster share.
    pub key: SharedKey,
    /// Number of this compute server, below 1023, which no other process uses. `None`: the lease server selects one.
    pub compute: Option<u16>,
    /// Time after which a request to a memory server that does not answer fails.
    pub timeout: Duration,
    /// How the threads of the cluster wait for the network.
    pub wait: WaitMode,
    /// Threads of the cluster, which share the index cache and the local locks. Each has a connection to each memory server. At
    /// least 1.
    pub threads: usize,
}

impl ClusterSettings {
    /// Returns the settings for `servers` with a timeout of 5 s and one thread.
    #[must_use]
    pub fn new(
        servers: impl IntoIterator<Item: Into<ServerAddress>>,
        key: SharedKey,
    ) -> ClusterSettings {
        ClusterSettings {
            servers: servers.into_iter().map(Into::into).collect(),
            key,
            compute: None,
            timeout: Duration::from_secs(5),
            wait: WaitMode::Block,
            threads: 1,
        }
    }
}

/// Counted costs of the operations of a [`Cluster`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClusterStats {
    /// Operations that succeeded. A scan counts one for each page that it reads.
    pub operations: u64,
    /// Awaited batches, without failed attempts to take a lock.
    pub round_trips: u64,
    /// Repeated reads of nodes and values.
    pub read_retries: u64,
    /// Failed attempts to take a lock.
    pub lock_retries: u64,
    /// Nodes split.
    pub splits: u64,
    /// Leaves merged.
    pub merges: u64,
    /// Locks taken from dead clients.
    pub taken_over: u64,
    /// Separators added and moves completed for clients that did not finish.
    pub mended: u64,
}

impl ClusterStats {
    fn add(&mut self, op: &OpStats) {
        self.operations += 1;
        self.round_trips += u64::from(op.round_trips);
        self.read_retries += u64::from(op.read_retries);
        self.lock_retries += u64::from(op.lock_retries);
        self.splits += u64::from(op.splits);
        self.merges += u64::from(op.merges);
        self.taken_over += u64::from(op.taken_over);
        self.mended += u64::from(op.mended);
    }
}

/// A tree and its memory servers, as a session sees them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterInfo {
    /// Sizes of the tree.
    pub tree: TreeDescriptor,
    /// The memory servers, in the order of their numbers.
    pub servers: Vec<ServerInfo>,
    /// Their addresses. Those of servers that have left are [`ServerAddress::Left`], and their sizes are zeros.
    pub addresses: Vec<ServerAddress>,
    /// The server that is leaving, as of the last fourth of a lease time.
    pub leaving: Option<u16>,
    /// Number of this compute server.
    pub compute: u16,
    /// Its epoch.
    pub epoch: u8,
}

/// A client's access to a tree on memory servers. Clones share the connections. All threads may use it, and their
/// operations run at the same time.
///
/// ```no_run
/// use farbank_fabric::shm::ServerAddress;
/// use farbank_fabric::tcp::SharedKey;
/// use farbank_tree::{Cluster, ClusterSettings, TreeSettings};
///
/// // Or "shm:/dev/shm/memory0", for memory servers of this host.
/// let servers: Vec<ServerAddress> = vec!["127.0.0.1:7411".parse()?, "127.0.0.1:7412".parse()?];
/// let key = SharedKey::new(std::fs::read("key")?).ok_or("the key is too short")?;
/// let cluster = Cluster::connect(ClusterSettings::new(servers, key))?;
/// cluster.create(&TreeSettings::default())?;
/// cluster.put(b"a key", b"a value")?;
/// assert_eq!(cluster.get(b"a key")?.as_deref(), Some(&b"a value"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Cluster {
    driver: Arc<Driver>,
}

impl Cluster {
    /// Connects to the memory servers.
    ///
    /// # Errors
    /// A memory server is not reachable, or has another key or number.
    pub fn connect(settings: ClusterSettings) -> Result<Cluster, ClusterError> {
        let (wait, threads) = (settings.wait, settings.threads);
        let settings = ShmSettings {
            servers: settings.servers,
            compute: settings.compute,
            key: settings.key,
            timeout: settings.timeout,
        };
        Ok(Cluster {
            driver: Arc::new(Driver::start(settings, wait, threads)?),
        })
    }

    /// Creates an empty tree. The first operation of a client opens an existing one.
    ///
    /// # Errors
    /// There is a tree or other data, or a size is out of range.
    pub fn create(&self, settings: &TreeSettings) -> Result<(), ClusterError> {
        let settings = *settings;
        self.driver.run(move |state| async move {
            let session = state.session().await?;
            let descriptor = create_tree(&session.fabric, &settings).await?;
            let list = ServerList::of_created(descriptor.servers);
            let list = ListCopy::read(list, descriptor.servers, session.fabric.now());
            session.set_tree(descriptor, list);
            Ok(())
        })
    }

    /// Returns the sizes of the tree and of its memory servers.
    ///
    /// # Errors
    /// There is no tree, or a memory server does not answer.
    pub fn info(&self) -> Result<ClusterInfo, ClusterError> {
        self.read(|state, session| async move {
            let (tree, client) = session.tree();
            let servers = (0..session.fabric.servers())
                .map(|server| session.fabric.server_info(server))
                .collect();
            let mut addresses = state.settings().servers;
            addresses.truncate(usize::from(session.fabric.servers()));
            Ok(ClusterInfo {
                tree,
                servers,
                addresses,
                leaving: client.list_copy(|copy| copy.list.leaving),
                compute: session.fabric.compute(),
                epoch: session.fabric.epoch(),
            })
        })
    }

    /// Adds the memory server at `address` to the tree, and returns its number. It must have been started with this number, the next after
    /// those of the tree's servers, and with empty memory. Waits for three lease times, until all clients know it; they need not be restarted.
    /// From then on, splits also put nodes there. Nodes stay on their server otherwise.
    ///
    /// If this fails with an error of the fabric, the addition may have begun: repeat it with the same address.
    ///
    /// # Errors
    /// There is no tree; the server is not reachable, has another number or data of another structure; another server is joining.
    pub fn add_server(&self, address: ServerAddress) -> Result<u16, ClusterError> {
        if matches!(address, ServerAddress::Shm(_)) {
            return Err(ClusterError::JoinsByFile);
        }
        self.driver.run(move |state| async move {
            let (tree, _) = state.opened().await?.tree();
            let mut settings = state.settings();
            settings.compute = None;
            // The last one may be joining, if an earlier call has failed.
            let (last, others) = settings.servers.split_last().expect("there is a server");
            if let Some(server) = others.iter().position(|known| *known == address) {
                let server = server as u16;
                return Err(ClusterError::InTree { server });
            }
            if *last != address {
                settings.servers.push(address.clone());
            }
            // As another compute server, which knows the new one from the start.
            let fabric = ShmFabric::connect(&state.reactor, settings)?;
            let number = fabric.servers() - 1;
            let add = add_server(&fabric, &tree, &address);
            in_own_epoch(&state, &fabric, add).await.map(|()| number)
        })
    }

    /// Moves all nodes and values from memory server `server` to others, while clients use the tree, and removes the server from the
    /// tree. On `Ok`, nothing leads to the server, no client uses it, and it can be ended. Calls `progress` from a thread of the cluster.
    ///
    /// Waits for six lease times, besides the time of the moves. If this fails, the server stays in the tree and gets no new
    /// nodes: repeat it, or call [`Cluster::keep_server`].
    ///
    /// # Errors
    /// There is no tree, or no such server; it is server 0; another server is joining or leaving; the other servers are full; or a
    /// server does not answer.
    pub fn remove_server(
        &self,
        server: u16,
        mut progress: impl FnMut(&DrainCounts) + Send + 'static,
    ) -> Result<DrainCounts, ClusterError> {
        self.driver.run(move |state| async move {
            let (tree, _) = state.opened().await?.tree();
            let fabric = another_fabric(&state)?;
            let remove = remove_server(&fabric, &tree, server, &mut progress);
            in_own_epoch(&state, &fabric, remove).await
        })
    }

    /// Ends an interrupted [`Cluster::remove_server`]: the server gets new nodes again.
    ///
    /// # Errors
    /// As for [`Cluster::remove_server`]; also, the server has left.
    pub fn keep_server(&self, server: u16) -> Result<(), ClusterError> {
        self.driver.run(move |state| async move {
            let (tree, _) = state.opened().await?.tree();
            let fabric = another_fabric(&state)?;
            in_own_epoch(&state, &fabric, keep_server(&fabric, &tree, server)).await
        })
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// There is no tree, the key is too long, or a memory server does not answer.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ClusterError> {
        let key = key.to_vec();
        self.read(move |state, session| {
            let key = key.clone();
            async move { get(&state, &session, &key).await }
        })
    }

    /// Sets the value of `key`. Returns whether it had one (TREE-CLUSTER-1).
    ///
    /// # Errors
    /// As for [`Cluster::get`]; also, the value is too long, or a memory server is full.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, ClusterError> {
        let (key, value) = (key.to_vec(), value.to_vec());
        self.driver.run(move |state| async move {
            let session = state.opened().await?;
            put(&state, &session, &key, &value).await
        })
    }

    /// Sets the value of `key` if it has none. Returns whether it had none (TREE-CLUSTER-1).
    ///
    /// # Errors
    /// As for [`Cluster::put`].
    pub fn insert_if_absent(&self, key: &[u8], value: &[u8]) -> Result<bool, ClusterError> {
        let (key, value) = (key.to_vec(), value.to_vec());
        self.driver.run(move |state| async move {
            let session = state.opened().await?;
            let (tree, client) = session.tree();
            let stored = encode_key(&key, tree.key_bytes_max)?;
            let inserted = client.insert_bytes_if_absent(stored, &value).await?;
            state.count(|stats| stats.add(&client.take_op()));
            Ok(inserted)
        })
    }

    /// Returns the values of many keys, in their order. Reads some at the same time. The result is not atomic.
    ///
    /// # Errors
    /// The first error of [`Cluster::get`].
    pub fn get_all(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>, ClusterError> {
        self.read(move |state, session| {
            let keys = keys.clone();
            async move { get_all(&state, &session, keys).await }
        })
    }

    /// Sets the value of `key` to `new` if it is `expected`. `None` is the absence of the key. The comparison and the write
    /// are one step for all clients (TREE-CLUSTER-1).
    ///
    /// # Errors
    /// As for [`Cluster::put`].
    ///
    /// ```no_run
    /// # fn add_one(cluster: &farbank_tree::Cluster) -> Result<(), farbank_tree::ClusterError> {
    /// use farbank_tree::CasOutcome;
    ///
    /// let mut seen: Option<Vec<u8>> = None;
    /// loop {
    ///     let count: u64 = seen.as_deref().map_or(0, |text| String::from_utf8_lossy(text).parse().unwrap_or(0));
    ///     let next = (count + 1).to_string();
    ///     match cluster.compare_and_swap(b"counter", seen.as_deref(), Some(next.as_bytes()))? {
    ///         CasOutcome::Swapped => return Ok(()),
    ///         CasOutcome::Differs(found) => seen = found,
    ///     }
    /// }
    /// # }
    /// ```
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CasOutcome<Vec<u8>>, ClusterError> {
        let key = key.to_vec();
        let expected = expected.map(<[u8]>::to_vec);
        let new = new.map(<[u8]>::to_vec);
        self.driver.run(move |state| async move {
            let session = state.opened().await?;
            let (tree, client) = session.tree();
            let stored = encode_key(&key, tree.key_bytes_max)?;
            let swap = client.compare_and_swap_bytes(stored, expected.as_deref(), new.as_deref());
            let outcome = swap.await?;
            state.count(|stats| stats.add(&client.take_op()));
            Ok(outcome)
        })
    }

    /// Sets the values of many keys, some at the same time. Entries of one key take effect in their order. After an error,
    /// any of the writes may have taken effect.
    ///
    /// # Errors
    /// The first error of [`Cluster::put`].
    pub fn put_all(&self, entries: Vec<KeyValue>) -> Result<(), ClusterError> {
        self.driver.run(move |state| async move {
            let session = Rc::new(state.opened().await?);
            let parts = split_by_key(entries, |(key, _)| key);
            let write = |part: Vec<KeyValue>| {
                let (state, session) = (Rc::clone(&state), Rc::clone(&session));
                async move {
                    for (key, value) in &part {
                        put(&state, &session, key, value).await?;
                    }
                    Ok(())
                }
            };
            run_all(&state, parts.into_iter().map(write)).await?;
            Ok(())
        })
    }

    /// Removes `key`. Returns whether it was present (TREE-CLUSTER-1).
    ///
    /// # Errors
    /// As for [`Cluster::get`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, ClusterError> {
        let key = key.to_vec();
        self.driver.run(move |state| async move {
            let session = state.opened().await?;
            let (tree, client) = session.tree();
            let stored = encode_key(&key, tree.key_bytes_max)?;
            let removed = client.remove_bytes(stored).await?;
            state.count(|stats| stats.add(&client.take_op()));
            Ok(removed)
        })
    }

    /// Returns at most `count` keys from `from` to `to`, with their values, sorted by key. The result is not atomic: a key
    /// that is written meanwhile may or may not be in it. The result is in memory; for a long range, use
    /// [`Cluster::scan_each`].
    ///
    /// # Errors
    /// As for [`Cluster::get`].
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
    ) -> Result<Vec<KeyValue>, ClusterError> {
        self.scan_in(Direction::Up, from, to, count)
    }

    /// Like [`Cluster::scan`], but returns the last `count` keys from `from` to `to`, the greatest key first. To continue, call
    /// this with [`Bound::Excluded`] of the last key as `to`.
    ///
    /// # Errors
    /// As for [`Cluster::get`].
    pub fn scan_down(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
    ) -> Result<Vec<KeyValue>, ClusterError> {
        self.scan_in(Direction::Down, from, to, count)
    }

    /// Calls `each` for at most `count` keys from `from` to `to`, with their values, until it returns false: in ascending order, or
    /// in descending order if `is_down`. Reads the range in parts, so that it needs little memory. Not atomic, like
    /// [`Cluster::scan`].
    ///
    /// # Errors
    /// As for [`Cluster::get`].
    pub fn scan_each(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        is_down: bool,
        count: usize,
        mut each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ClusterError> {
        /// Keys that are in memory at once.
        const PART: usize = 256;
        let mut reached: Option<Vec<u8>> = None;
        let mut left = count;
        while left > 0 {
            let after = reached.as_deref().map(Bound::Excluded);
            let wanted = left.min(PART);
            let part = match is_down {
                false => self.scan(after.unwrap_or(from), to, wanted)?,
                true => self.scan_down(from, after.unwrap_or(to), wanted)?,
            };
            if !part.iter().all(|(key, value)| each(key, value)) || part.len() < wanted {
                break;
            }
            left -= part.len();
            reached = part.into_iter().next_back().map(|(key, _)| key);
        }
        Ok(())
    }

    fn scan_in(
        &self,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
    ) -> Result<Vec<KeyValue>, ClusterError> {
        let range = ScanRange {
            direction,
            from: from.map(<[u8]>::to_vec),
            to: to.map(<[u8]>::to_vec),
        };
        self.read(move |state, session| {
            let range = range.clone();
            async move { scan(&state, &session, &range, count).await }
        })
    }

    /// Returns the counted costs of the operations of this cluster and its clones.
    ///
    /// # Errors
    /// The threads of the cluster have ended.
    pub fn stats(&self) -> Result<ClusterStats, ClusterError> {
        self.driver.run(|state| async move { Ok(state.stats()) })
    }

    /// Runs a read, and repeats it once after an error of the fabric (TREE-CLUSTER-3).
    fn read<T, R>(
        &self,
        operation: impl Fn(Rc<DriverState>, Rc<SessionUse>) -> R + Clone + Send + 'static,
    ) -> Result<T, ClusterError>
    where
        T: Send + 'static,
        R: Future<Output = Result<T, ClusterError>> + 'static,
    {
        let once = || {
            let operation = operation.clone();
            self.driver.run(move |state| async move {
                let session = Rc::new(state.opened().await?);
                operation(state, session).await
            })
        };
        match once() {
            Err(error) if error.is_of_fabric() => once(),
            done => done,
        }
    }
}

/// Connects as another compute server: one that does not retire when the list of servers changes.
fn another_fabric(state: &DriverState) -> Result<ShmFabric, ClusterError> {
    let settings = ShmSettings {
        compute: None,
        ..state.settings()
    };
    Ok(ShmFabric::connect(&state.reactor, settings)?)
}

/// Runs `work`, which uses `fabric` alone, and leaves the epoch if nothing of it can be under way (TREE-CLUSTER-2).
async fn in_own_epoch<T>(
    state: &DriverState,
    fabric: &ShmFabric,
    work: impl Future<Output = Result<T, ClusterError>>,
) -> Result<T, ClusterError> {
    state.reactor.spawn(fabric.clone().keep_alive());
    let done = work.await;
    if !done.as_ref().is_err_and(ClusterError::is_of_fabric) {
        // Without the answer the epoch ends with its lease.
        let _ = fabric.leave().await;
    }
    done
}

async fn get(
    state: &DriverState,
    session: &Session,
    key: &[u8],
) -> Result<Option<Vec<u8>>, ClusterError> {
    let (tree, client) = session.tree();
    let stored = encode_key(key, tree.key_bytes_max)?;
    let value = client.get_bytes(stored).await?;
    state.count(|stats| stats.add(&client.take_op()));
    Ok(value)
}

async fn get_all(
    state: &Rc<DriverState>,
    session: &Rc<SessionUse>,
    keys: Vec<Vec<u8>>,
) -> Result<Vec<Option<Vec<u8>>>, ClusterError> {
    let mut values = vec![None; keys.len()];
    let numbered: Vec<_> = keys.into_iter().enumerate().collect();
    let read = |part: Vec<(usize, Vec<u8>)>| {
        let (state, session) = (Rc::clone(state), Rc::clone(session));
        async move {
            let mut found = Vec::with_capacity(part.len());
            for (number, key) in part {
                found.push((number, get(&state, &session, &key).await?));
            }
            Ok(found)
        }
    };
    let parts = split_by_key(numbered, |(_, key)| key);
    for part in run_all(state, parts.into_iter().map(read)).await? {
        for (number, value) in part {
            values[number] = value;
        }
    }
    Ok(values)
}

/// Runs `parts` at the same time, to the end of each. Returns their results, or the first error.
async fn run_all<T: 'static>(
    state: &DriverState,
    parts: impl Iterator<Item = impl Future<Output = Result<T, ClusterError>> + 'static>,
) -> Result<Vec<T>, ClusterError> {
    let tasks: Vec<_> = parts.map(|part| state.reactor.spawn(part)).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await);
    }
    results.into_iter().collect()
}

async fn put(
    state: &DriverState,
    session: &Session,
    key: &[u8],
    value: &[u8],
) -> Result<bool, ClusterError> {
    let (tree, client) = session.tree();
    let stored = encode_key(key, tree.key_bytes_max)?;
    let replaced = client.insert_bytes(stored, value).await?;
    state.count(|stats| stats.add(&client.take_op()));
    Ok(replaced)
}

/// The keys of a scan.
#[derive(Clone)]
struct ScanRange {
    direction: Direction,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

impl ScanRange {
    /// Returns the first stored key of the range, in a tree with user keys of at most `most` bytes.
    fn first(&self, most: usize) -> Result<Option<Key>, TreeError> {
        let begin = match self.direction {
            Direction::Up => &self.from,
            Direction::Down => &self.to,
        };
        Ok(match (begin, self.direction) {
            (Bound::Included(key), _) => Some(encode_key(key, most)?),
            (Bound::Excluded(key), direction) => {
                direction.next(&encode_key(key, most)?, most + LENGTH_BYTES)
            }
            (Bound::Unbounded, Direction::Up) => Some(Key::LEAST),
            (Bound::Unbounded, Direction::Down) => {
                Some(Key::new(&vec![u8::MAX; most + LENGTH_BYTES]))
            }
        })
    }

    /// Returns whether `key`, which the scan has reached, is before its end.
    fn has(&self, key: &[u8]) -> bool {
        match self.direction {
            Direction::Up => match &self.to {
                Bound::Included(last) => key <= last.as_slice(),
                Bound::Excluded(end) => key < end.as_slice(),
                Bound::Unbounded => true,
            },
            Direction::Down => match &self.from {
                Bound::Included(last) => key >= last.as_slice(),
                Bound::Excluded(end) => key > end.as_slice(),
                Bound::Unbounded => true,
            },
        }
    }
}

async fn scan(
    state: &DriverState,
    session: &Session,
    range: &ScanRange,
    count: usize,
) -> Result<Vec<KeyValue>, ClusterError> {
    /// Keys that are read at once.
    const PAGE: usize = 256;
    let (tree, client) = session.tree();
    let (most, direction) = (tree.key_bytes_max, range.direction);
    let mut next = range.first(most)?;
    let mut found = Vec::new();
    while let Some(first) = next.take().filter(|_| found.len() < count) {
        let wanted = PAGE.min(count - found.len());
        let page = client.range_bytes_in(direction, first, wanted).await?;
        state.count(|stats| stats.add(&client.take_op()));
        if page.len() == wanted {
            let last = page.last();
            next = last.and_then(|(key, _)| direction.next(key, most + LENGTH_BYTES));
        }
        for (stored, value) in page {
            let key = decode_key(&stored, most);
            if !range.has(&key) {
                return Ok(found);
            }
            found.push((key, value));
        }
    }
    Ok(found)
}

/// Distributes items over the requests that run at the same time, so that items of one key stay in their order.
fn split_by_key<T>(items: Vec<T>, key: impl Fn(&T) -> &[u8]) -> Vec<Vec<T>> {
    /// Requests at the same time.
    const AT_ONCE: usize = 16;
    let mut parts: Vec<Vec<T>> = (0..AT_ONCE).map(|_| Vec::new()).collect();
    for item in items {
        let part = crc32c::crc32c(key(&item)) as usize % AT_ONCE;
        parts[part].push(item);
    }
    parts
}
