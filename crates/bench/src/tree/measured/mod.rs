//! The tree over TCP or shared memory, measured in real time: `farbank bench tree --fabric tcp` and `--fabric shm`.
//!
//! ```text
//!   a compute server: threads of this process         memory servers: threads of this process
//!   ┌────────────────────────────────┐                ┌──────────────┐
//!   │ thread: a reactor, clients in  ├── loopback, ──▶│ 0: leases,   │
//!   │         a closed loop  ⋮       ├── mapping      │    nodes     │
//!   │ index cache, local locks       │       │        ├──────────────┤
//!   └────────────────────────────────┘       └───────▶│ 1: nodes  ⋮  │
//!                  ⋮                                  └──────────────┘
//! ```
//!
//! Each run has a new tree, filled to 80 %, and two parts:
//! 1. one client in turn reads as many bytes as a node has (the bare round trip), looks up a key and updates it: medians, and their
//!    ratio to as many bare round trips. By shared memory, a bare copy of a node replaces the bare round trip;
//! 2. all clients run the mix in a closed loop: throughput and latencies.
//!
//! By default, clients and servers share the CPUs of one machine. So part 2 measures the CPU time of both sides, not a network. With
//! [`ServerChoice::Running`] the memory servers are other processes, also on other hosts. Words
//! are values, and nodes have checksums. Every result is verified (`verified`), and all entries at the end.
//!
//! By shared memory, the compute servers map the memories, each for itself, as processes do. Their threads share the mapping.

mod cluster;
mod member;
mod verified;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use farbank_fabric::shm::{ServerAddress, ShmFabric};
use farbank_fabric::tcp::{Reactor, SharedKey, WaitMode};
use farbank_fabric::{Fabric, GAddr, Nanos};
use farbank_pm::media::share_path;
use farbank_pm::rng::Rng;
use farbank_pm::{Medium, Off};
use farbank_tree::op_stats::TreeStats;
use farbank_tree::{Client, Compute, Config, TreeError};
use hdrhistogram::Histogram;

use self::cluster::MemoryServers;
use self::member::members;
use self::verified::{perform, verify_all};
use super::load::{RunKeys, TreeMix, TreeOp};
use super::options::TreeSystem;
use crate::figure::{Error, Figure, ProgressFn, Report, report_progress};

/// The fabric of a measured run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeasuredFabric {
    /// TCP over loopback.
    Tcp,
    /// Shared memory.
    Shm,
    /// libfabric's provider [`DEFAULT_PROVIDER`](farbank_fabric::libfabric::DEFAULT_PROVIDER) over loopback, or the provider of running
    /// servers.
    #[cfg(feature = "libfabric")]
    Libfabric,
}

impl MeasuredFabric {
    /// Returns whether locks on it are whole words.
    const fn has_whole_locks(self) -> bool {
        #[cfg(feature = "libfabric")]
        return matches!(self, MeasuredFabric::Libfabric);
        #[cfg(not(feature = "libfabric"))]
        false
    }

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MeasuredFabric::Tcp => "tcp",
            MeasuredFabric::Shm => "shm",
            #[cfg(feature = "libfabric")]
            MeasuredFabric::Libfabric => "libfabric",
        }
    }
}

/// The memory servers of a measured run.
#[derive(Clone, Debug)]
pub enum ServerChoice {
    /// So many threads of this process.
    Threads(u16),
    /// Processes that were started with new memory, for one system.
    Running {
        /// Their addresses, in the order of their numbers.
        addresses: Vec<ServerAddress>,
        /// The key that they share.
        key: SharedKey,
    },
}

/// Options of a measured run.
#[derive(Clone, Debug)]
pub struct MeasuredOptions {
    /// How compute servers reach the memory servers.
    pub fabric: MeasuredFabric,
    /// Systems, one after another.
    pub systems: Vec<TreeSystem>,
    /// Operations of the clients.
    pub mix: TreeMix,
    /// Skew of the keys, 0 to 0.99.
    pub theta: f64,
    /// The memory servers.
    pub servers: ServerChoice,
    /// Number of compute servers.
    pub compute_servers: u16,
    /// Threads of each compute server, which share its index cache and its locks.
    pub threads: u16,
    /// Clients of each thread.
    pub coroutines: u16,
    /// Entries at the start.
    pub entries: u64,
    /// Bytes of internal nodes that each compute server may cache.
    pub cache_bytes: usize,
    /// Length of the measured window.
    pub window: Duration,
    /// How clients and servers wait for the network.
    pub wait: WaitMode,
    /// Seed of the random choices.
    pub seed: u64,
}

impl MeasuredOptions {
    /// Returns the number of clients.
    #[must_use]
    pub fn clients(&self) -> u32 {
        let threads = u32::from(self.compute_servers) * u32::from(self.threads);
        threads * u32::from(self.coroutines)
    }
}

/// Bytes of internal nodes that a compute server may cache, unless an option says otherwise.
pub const CACHE_BYTES: usize = 64 << 20;
/// Less keys than the leaves below one node of level 1 have.
const KEYS_OF_PARENT: usize = 512;
/// Measured operations of each kind in part 1.
const UNLOADED_OPERATIONS: u64 = 4_000;
/// Bound of the median of an operation of one client by TCP, in bare round trips for each of its round trips.
const BARE_RATIO_MAX: f64 = 1.3;
/// Share of the window before it, in which caches fill and contention builds up.
const WARMING: u32 = 4;
/// Longest latency that a histogram records, in nanoseconds. Longer latencies count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant digits of a recorded latency.
const DIGITS: u8 = 3;

/// Measures the systems.
///
/// # Errors
/// A socket or a thread could not be created, an operation failed, or `watch` stopped the run.
pub fn run(options: &MeasuredOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut report = Report::default();
    let all = options.systems.len() as u64;
    for (done, system) in options.systems.iter().enumerate() {
        let mut step = |what: &str| {
            let what = format!("{}: {what}", system.name());
            report_progress(watch, &what, done as u64, all)
        };
        step("fills the tree")?;
        let config = Config {
            cache_bytes: options.cache_bytes.min(system.config().cache_bytes),
            doubt_ns: cluster::LOCK_DOUBT.as_nanos() as Nanos,
            ..system.config().with_checksums()
        };
        let keys = Arc::new(RunKeys::new(options.entries, options.theta));
        let cluster = MemoryServers::start(options, &config, keys.start())?;
        step("one client")?;
        let unloaded = unloaded(&cluster, &config, options, &keys)?;
        step("all clients")?;
        let loaded = loaded(&cluster, &config, options, &keys)?;
        report
            .figures
            .extend(figures(system.name(), options, &unloaded, &loaded));
    }
    let servers = match &options.servers {
        ServerChoice::Threads(count) => {
            format!("{count} memory servers in threads of this process")
        }
        ServerChoice::Running { addresses, .. } => {
            format!("{} memory servers in other processes", addresses.len())
        }
    };
    report.notes.push(format!(
        "measured over {}: {servers}; {} compute servers of {} threads in this process; {} clients, {} entries, seed {}; every \
         result verified",
        options.fabric.name(),
        options.compute_servers,
        options.threads,
        options.clients(),
        options.entries,
        options.seed
    ));
    Ok(report)
}

/// Latencies and costs of operations of one kind.
struct MeasuredOperation {
    latency: Histogram<u64>,
    round_trips: u64,
}

impl MeasuredOperation {
    fn new() -> MeasuredOperation {
        let latency = Histogram::new_with_max(LATENCY_NS_MAX, DIGITS);
        MeasuredOperation {
            latency: latency.expect("the bounds of the histogram are valid"),
            round_trips: 0,
        }
    }

    fn add(&mut self, took: Duration, round_trips: u64) {
        self.latency.saturating_record(took.as_nanos() as u64);
        self.round_trips += round_trips;
    }

    fn merge(&mut self, other: &MeasuredOperation) {
        let added = self.latency.add(&other.latency);
        added.expect("all histograms have the same bounds");
        self.round_trips += other.round_trips;
    }

    fn us(&self, part: f64) -> f64 {
        self.latency.value_at_quantile(part) as f64 / 1000.0
    }

    fn trips(&self) -> f64 {
        self.round_trips as f64 / self.latency.len().max(1) as f64
    }
}

/// Results of one client alone.
struct SingleClientResults {
    bare: MeasuredOperation,
    /// Copies of a node out of the mapping, by shared memory.
    copies: MeasuredOperation,
    lookups: MeasuredOperation,
    updates: MeasuredOperation,
}

/// Results of all clients.
struct AllClientResults {
    lookups: MeasuredOperation,
    writes: MeasuredOperation,
    ranges: MeasuredOperation,
    tally: TreeStats,
    errors: Vec<Error>,
}

impl AllClientResults {
    fn new() -> AllClientResults {
        AllClientResults {
            lookups: MeasuredOperation::new(),
            writes: MeasuredOperation::new(),
            ranges: MeasuredOperation::new(),
            tally: TreeStats::default(),
            errors: Vec::new(),
        }
    }

    fn merge(&mut self, other: AllClientResults) {
        self.lookups.merge(&other.lookups);
        self.writes.merge(&other.writes);
        self.ranges.merge(&other.ranges);
        self.tally.merge(&other.tally);
        self.errors.extend(other.errors);
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}

fn unloaded(
    cluster: &MemoryServers,
    config: &Config,
    options: &MeasuredOptions,
    keys: &RunKeys,
) -> Result<SingleClientResults, Error> {
    let reactor = Reactor::new(options.wait).map_err(failed)?;
    let fabric = cluster.connect(&reactor)?;
    let client = compute_server(&fabric, config).client();
    let mut rng = Rng::new(options.seed);
    // As far apart as the leaves that lookups read.
    let leaves = options.entries / config.layout.entries() as u64;
    let bare_nodes = (leaves / u64::from(cluster.count())).max(1);
    let mut results = SingleClientResults {
        bare: MeasuredOperation::new(),
        copies: MeasuredOperation::new(),
        lookups: MeasuredOperation::new(),
        updates: MeasuredOperation::new(),
    };
    let mapped: Vec<_> = cluster
        .memories()
        .map(|path| share_path(path).map_err(failed))
        .collect::<Result<_, _>>()?;
    let mut buffer = vec![0; config.layout.node_bytes];
    let measured = reactor.block_on(async {
        // Each level 1 node of the tree gets into the cache.
        for key in (0..keys.space()).step_by(KEYS_OF_PARENT) {
            client.get(key).await?;
        }
        for n in 0..2 * UNLOADED_OPERATIONS {
            let key = keys.draw(&mut rng);
            let server = (n % u64::from(cluster.count())) as u16;
            let node = rng.below(bare_nodes) * config.layout.node_bytes as u64;
            let at = GAddr::host(server, cluster::BARE_READ_AT + node);
            let began = Instant::now();
            fabric.read(at, config.layout.node_bytes).await?;
            let bare = began.elapsed();
            let began = Instant::now();
            let copied = mapped.get(usize::from(server));
            if let Some(mapped) = copied {
                mapped.copy_out(
                    Off(cluster::BARE_READ_AT + rng.below(bare_nodes) * buffer.len() as u64),
                    &mut buffer,
                );
            }
            let copy = began.elapsed();
            let began = Instant::now();
            client.get(key).await?;
            let lookup = (began.elapsed(), client.take_op().round_trips.into());
            let began = Instant::now();
            client.insert(key, verified::value_of(key, n)).await?;
            let update = (began.elapsed(), client.take_op().round_trips.into());
            // The first half fills the cache.
            if n >= UNLOADED_OPERATIONS {
                results.bare.add(bare, 1);
                results.copies.add(copy, 1);
                results.lookups.add(lookup.0, lookup.1);
                results.updates.add(update.0, update.1);
            }
        }
        fabric.leave().await.map_err(TreeError::from)
    });
    measured.map_err(failed)?;
    Ok(results)
}

fn compute_server(fabric: &ShmFabric, config: &Config) -> Compute<ShmFabric> {
    fabric.reactor().spawn(fabric.clone().keep_alive());
    Compute::new(fabric.clone(), fabric.compute(), fabric.epoch(), *config)
}

fn loaded(
    cluster: &MemoryServers,
    config: &Config,
    options: &MeasuredOptions,
    keys: &Arc<RunKeys>,
) -> Result<AllClientResults, Error> {
    let all = usize::from(options.compute_servers) * usize::from(options.threads);
    let start = Barrier::new(all + 1);
    let window = Arc::new(MeasuredWindow::default());
    let mut sum = AllClientResults::new();
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(all);
        for compute in 0..options.compute_servers {
            for mut member in members(options.threads) {
                let (start, window) = (&start, &window);
                let first = compute * options.threads;
                threads.push(scope.spawn(move || {
                    let joined = member.join(cluster, config, options.wait);
                    start.wait();
                    let number = first + member.number;
                    member.end(joined.map(|(fabric, compute)| {
                        let done = run_clients(&fabric, &compute, options, keys, number, window);
                        (done, fabric)
                    }))
                }));
            }
        }
        start.wait();
        thread::sleep(options.window / WARMING);
        window.is_open.store(true, Ordering::Relaxed);
        thread::sleep(options.window);
        window.is_closed.store(true, Ordering::Relaxed);
        for thread in threads {
            let results = thread.join().expect("a compute server does not panic");
            sum.merge(results?);
        }
        Ok::<(), Error>(())
    })?;
    match sum.errors.pop() {
        Some(error) => Err(error),
        None => verify_all(cluster, config, options.wait, keys).map(|()| sum),
    }
}

/// The measured window, for all threads.
#[derive(Default)]
struct MeasuredWindow {
    is_open: AtomicBool,
    is_closed: AtomicBool,
}

/// Runs the clients of one thread until the window closes. `number` is that of the thread among all of the run.
fn run_clients(
    fabric: &ShmFabric,
    compute: &Compute<ShmFabric>,
    options: &MeasuredOptions,
    keys: &Arc<RunKeys>,
    number: u16,
    window: &Arc<MeasuredWindow>,
) -> AllClientResults {
    let threads = u64::from(options.compute_servers * options.threads);
    let mut sum = AllClientResults::new();
    fabric.reactor().block_on(async {
        let clients = (0..options.coroutines).map(|turn| {
            let number = u64::from(number) + u64::from(turn) * threads;
            let rng = Rng::new(options.seed).fork(number);
            let is_ranger = options.mix.is_ranger(number);
            let (keys, window) = (Arc::clone(keys), Arc::clone(window));
            run_client(compute.client(), options.mix, is_ranger, keys, rng, window)
        });
        let clients: Vec<_> = clients
            .map(|client| fabric.reactor().spawn(client))
            .collect();
        for client in clients {
            sum.merge(client.await);
        }
    });
    sum
}

/// One client, which runs one operation after another until the window closes.
async fn run_client(
    client: Client<ShmFabric>,
    mix: TreeMix,
    is_ranger: bool,
    keys: Arc<RunKeys>,
    mut rng: Rng,
    window: Arc<MeasuredWindow>,
) -> AllClientResults {
    let mut results = AllClientResults::new();
    let mut value = 0;
    while !window.is_closed.load(Ordering::Relaxed) {
        let op = mix.draw(is_ranger, &keys, &mut rng);
        value += 1;
        let began = Instant::now();
        if let Err(error) = perform(&client, &keys, op, value).await {
            results.errors.push(error);
            break;
        }
        let took = began.elapsed();
        let cost = client.take_op();
        if !window.is_open.load(Ordering::Relaxed) {
            continue;
        }
        let trips = cost.round_trips.into();
        match op {
            TreeOp::Get(_) => {
                results.tally.lookup(&cost);
                results.lookups.add(took, trips);
            }
            TreeOp::Insert(_) | TreeOp::Modify(_) => {
                results.tally.write(&cost);
                results.writes.add(took, trips);
            }
            TreeOp::Range(..) => {
                results.tally.range(&cost);
                results.ranges.add(took, trips);
            }
        }
    }
    results
}

/// Returns the figures of one system.
fn figures(
    system: &str,
    options: &MeasuredOptions,
    unloaded: &SingleClientResults,
    loaded: &AllClientResults,
) -> Vec<Figure> {
    let (mut figures, mut bounded) = (Vec::new(), Vec::new());
    let fabric = options.fabric.name();
    let mut measured = |what: &str, value: f64, unit: &'static str| {
        let figure = Figure::measured(fabric, format!("{system}: {what}"), value);
        figures.push(figure.unit(unit));
    };
    let bare = unloaded.bare.us(0.5);
    let lone = [("lookup", &unloaded.lookups), ("update", &unloaded.updates)];
    for (what, alone) in lone {
        measured(&format!("one client: {what}, median"), alone.us(0.5), "us");
    }
    match options.fabric {
        MeasuredFabric::Tcp => {
            measured("one client: a bare round trip, median", bare, "us");
            for (what, alone) in lone {
                let name = format!("{system}: one client: {what} over its bare round trips");
                let ratio = alone.us(0.5) / (bare * alone.trips());
                let ratio = Figure::measured(fabric, name, ratio).unit("times");
                bounded.push(ratio.at_most(BARE_RATIO_MAX));
            }
        }
        #[cfg(feature = "libfabric")]
        MeasuredFabric::Libfabric => {
            measured("one client: a bare round trip, median", bare, "us");
            for (what, alone) in lone {
                let what = format!("one client: {what} over its bare round trips");
                measured(&what, alone.us(0.5) / (bare * alone.trips()), "times");
            }
        }
        MeasuredFabric::Shm => {
            measured("one client: a read of a node, median", bare, "us");
            let copy = unloaded.copies.us(0.5);
            measured("one client: a bare copy of a node, median", copy, "us");
            let ratio = unloaded.lookups.us(0.5) / unloaded.lookups.trips();
            for (what, one) in [("read", bare), ("bare copy", copy)] {
                let what = format!("one client: lookup over a {what} of a node");
                measured(&what, ratio / one, "times");
            }
        }
    }
    let kinds = [
        ("lookups", &loaded.lookups),
        ("writes", &loaded.writes),
        ("ranges", &loaded.ranges),
    ];
    let all: u64 = kinds.iter().map(|(_, kind)| kind.latency.len()).sum();
    let rate = all as f64 / options.window.as_secs_f64() / 1000.0;
    measured("all clients: throughput", rate, "k operations a second");
    for (what, kind) in kinds.iter().filter(|(_, kind)| !kind.latency.is_empty()) {
        for (part, name) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
            measured(&format!("all clients: {what}, {name}"), kind.us(part), "us");
        }
    }
    let mut counted = |what: &str, value: f64, unit: &'static str| {
        let figure = Figure::counted(fabric, format!("{system}: {what}"), value);
        figures.push(figure.unit(unit));
    };
    counted(
        "one client: round trips of a lookup",
        unloaded.lookups.trips(),
        "",
    );
    counted(
        "one client: round trips of an update",
        unloaded.updates.trips(),
        "",
    );
    for (what, kind) in kinds.iter().filter(|(_, kind)| !kind.latency.is_empty()) {
        counted(
            &format!("all clients: round trips of {what}"),
            kind.trips(),
            "",
        );
    }
    if loaded.tally.write_trips.count() > 0 {
        let writes = loaded.tally.write_trips.count() as f64;
        let handed_over = loaded.tally.handed_over as f64 / writes;
        counted("all clients: locks handed over", handed_over, "of writes");
        let split = loaded.tally.splits as f64 / writes;
        counted("all clients: writes that split a node", split, "of writes");
    }
    figures.extend(bounded);
    figures
}
