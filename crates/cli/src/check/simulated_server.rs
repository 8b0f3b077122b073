//! A server in this process whose pool is on a simulated medium, so that its power can be cut.
//!
//! ```text
//!   clients ──TCP──▶ Server, its workers ──▶ Kv ──▶ Sim ◀── thread that syncs, if the medium is a file
//!                                                    │
//!             end: one moment of the medium, captured under its lock
//!                                                    │
//!   next start ◀── one of the images that a power cut at this moment can leave, or all bytes after a kill
//! ```
//!
//! The server of the last start runs on until it is stopped, but on memory that the next one does not see.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farbank_check::child::ChildError;
use farbank_check::histories::{EndKind, HistoryServer, ServerAddresses, ServerEnd};
use farbank_kv::{CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::rng::Rng;
use farbank_pm::sim::{CrashState, Persistency, PoolImage, Sim};
use farbank_server::{Endpoint, Server, ServerHandle, ServerOptions};
use farbank_store::Error as StoreError;

/// Least number of bytes that are logged between two checkpoints: a small pool has many.
const CHECKPOINT_BYTES: u64 = 64 << 10;
/// Number of images of a moment among which a power cut chooses. The first ones are adversarial.
const IMAGES: usize = 64;
/// In one cycle of this many a drain or a sync fails.
const FAILING: u64 = 6;
/// The drain that fails is one of at most two to this power.
const DRAINS_BITS: u64 = 10;
/// A recovery ends at most two to this power of crash points after its start.
const RECOVERY_POINTS_BITS: u64 = 13;
/// Most worker threads that are drawn.
const WORKERS_MAX: u64 = 3;
/// The pause between two syncs of a simulated file has at most two to this power of microseconds.
const SYNC_PAUSE_BITS: u64 = 16;

/// A server in this process that failed.
fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> ChildError {
    ChildError::InProcess(error.into())
}

/// How the server is set up.
pub(super) struct SimulatedLaunch {
    /// What a power cut can lose.
    pub(super) persistency: Persistency,
    /// Size of the pool in bytes.
    pub(super) pool_bytes: u64,
    /// Size in bytes up to which a full pool grows; 0 if it does not grow.
    pub(super) pool_bytes_max: u64,
    /// Worker threads; 0 means one to three, drawn at each start.
    pub(super) workers: usize,
    /// Seed of the images that power cuts leave, and of the failures of the medium.
    pub(super) seed: u64,
}

impl SimulatedLaunch {
    /// Settings of the engine. With `cleaning` in the background, the engine has a thread of its own.
    fn config(&self, cleaning: CleaningMode) -> Config {
        Config {
            cleaning,
            pool_bytes_max: self.pool_bytes_max,
            checkpoint_bytes: CHECKPOINT_BYTES,
            ..Config::default()
        }
    }
}

/// A server that has been started, and the threads of it.
struct RunningServer {
    memory: Sim,
    handle: ServerHandle,
    /// Returns the store when the server has stopped.
    server: JoinHandle<std::io::Result<Kv<Sim>>>,
    stopped: Arc<AtomicBool>,
    syncing: Option<JoinHandle<()>>,
}

impl RunningServer {
    /// Stops the server and returns its store, which no session uses.
    fn stop(self) -> Result<Kv<Sim>, ChildError> {
        self.handle.stop();
        let served = self.server.join().expect("the server does not panic");
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(syncing) = self.syncing {
            syncing.join().expect("the syncing thread does not panic");
        }
        served.map_err(failed)
    }
}

/// The server under test, running or ended.
pub(super) struct SimulatedServer {
    launch: SimulatedLaunch,
    rng: Rng,
    /// What the next start opens; `None` before the first.
    memory: Option<Sim>,
    /// The bytes that the last start opened.
    opened: Option<PoolImage>,
    running: Option<RunningServer>,
}

impl SimulatedServer {
    pub(super) fn new(launch: SimulatedLaunch) -> SimulatedServer {
        SimulatedServer {
            rng: Rng::new(launch.seed),
            launch,
            memory: None,
            opened: None,
            running: None,
        }
    }

    /// Writes the bytes that the last start opened to a file, for inspection.
    pub(super) fn save(&self, path: &Path) -> std::io::Result<()> {
        match &self.opened {
            Some(image) => std::fs::write(path, image.to_bytes()),
            None => Ok(()),
        }
    }

    /// Takes the memory that the next start opens; `None` before the first.
    fn take_memory(&mut self) -> Option<Sim> {
        let memory = self.memory.take()?;
        self.opened = Some(memory.visible());
        Some(memory)
    }

    /// Returns memory after a power cut at the moment `state`.
    fn after_power_cut(&mut self, state: &CrashState) -> Sim {
        let cut = state.drawn_cut(IMAGES, self.rng.draw());
        Sim::from_image(state.image(&cut), self.launch.persistency)
    }

    /// Returns memory after a kill at the moment `state`, which on a file whose sync failed loses what was not written.
    fn after_kill(&mut self, state: &CrashState, failed: bool) -> Sim {
        if !failed || !self.launch.persistency.is_file() {
            return state.killed();
        }
        let cut = state.drawn_cut(IMAGES, self.rng.draw());
        let memory = state.killed_after_failed_sync(&cut);
        memory.drop_lost_pages();
        memory
    }

    /// Opens the store, or creates it at the first start.
    fn open(&mut self) -> Result<(Sim, Kv<Sim>), ChildError> {
        let taken = self.take_memory();
        let launch = &self.launch;
        let config = launch.config(CleaningMode::Background);
        let (memory, kv) = match taken {
            Some(memory) => (memory.clone(), Kv::open(memory, config)),
            None => {
                let memory = Sim::new(launch.pool_bytes, launch.persistency);
                let segment_bytes = segment_bytes_for(launch.pool_bytes);
                (memory.clone(), Kv::create(memory, segment_bytes, config))
            }
        };
        Ok((memory, kv.map_err(failed)?))
    }

    /// Closes the store. A medium that has failed refuses, which is no error of the server.
    fn close(kv: Kv<Sim>) -> Result<(), ChildError> {
        match kv.close() {
            Ok(_) | Err(StoreError::Poisoned(_) | StoreError::NoSnapshot { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

impl HistoryServer for SimulatedServer {
    fn start(&mut self) -> Result<ServerAddresses, ChildError> {
        let (memory, kv) = self.open()?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        // Only replies of several workers can depend on a write of another worker.
        let workers = match self.launch.workers {
            0 => 1 + self.rng.below(WORKERS_MAX) as usize,
            workers => workers,
        };
        let options = ServerOptions {
            workers,
            ..ServerOptions::default()
        };
        let endpoints = [Endpoint::resp(local), Endpoint::memcached(local)];
        let server = Server::bind(&endpoints, options).map_err(failed)?;
        server.listen().map_err(failed)?;
        let [resp, memcached] = [0, 1].map(|at| server.endpoints()[at].addr.to_string());
        let stopped = Arc::new(AtomicBool::new(false));
        let syncing = self.launch.persistency.is_file().then(|| {
            let (memory, stopped, rng) = (memory.clone(), Arc::clone(&stopped), self.rng.fork(0));
            thread::spawn(move || sync_until(&memory, &stopped, rng))
        });
        self.running = Some(RunningServer {
            memory,
            handle: server.handle(),
            server: thread::spawn(move || server.run(&kv).map(|()| kv)),
            stopped,
            syncing,
        });
        Ok(ServerAddresses {
            resp,
            memcached: Some(memcached),
        })
    }

    fn end(&mut self, now: &dyn Fn() -> u64, rng: &mut Rng) -> Result<ServerEnd, ChildError> {
        let running = self.running.take().expect("the server was started");
        let memory = running.memory.clone();
        let kind = match rng.below(8) {
            0 => EndKind::Shutdown,
            1 => EndKind::Killed,
            _ => EndKind::PowerCut,
        };
        if kind == EndKind::Shutdown {
            // After a clean end the power is cut, too: it loses nothing.
            SimulatedServer::close(running.stop()?)?;
            self.memory = Some(self.after_power_cut(&memory.crash_state()));
            return Ok(ServerEnd {
                kind,
                captured: None,
                medium_failed: memory.is_poisoned(),
            });
        }
        let began = now();
        let state = memory.crash_state();
        let ended = now();
        let failed = memory.is_poisoned();
        drop(running.stop()?);
        self.memory = Some(match kind {
            EndKind::Killed => self.after_kill(&state, failed),
            _ => self.after_power_cut(&state),
        });
        Ok(ServerEnd {
            kind,
            captured: Some(began..ended),
            medium_failed: failed,
        })
    }

    fn before_load(&mut self) {
        if let Some(running) = &self.running
            && self.rng.one_in(FAILING)
        {
            let most = 1 << self.rng.below(DRAINS_BITS);
            running.memory.fail_drain(1 + self.rng.below(most));
        }
    }

    fn medium_may_fail(&self) -> bool {
        true
    }

    fn end_in_recovery(&mut self, rng: &mut Rng) -> Result<(), ChildError> {
        let memory = self.take_memory().expect("the server has ended");
        let captured = Arc::new(Mutex::new(None));
        let most = 1 << rng.below(RECOVERY_POINTS_BITS);
        let points = AtomicU64::new(1 + rng.below(most));
        let kept = Arc::clone(&captured);
        memory.observe(Some(Arc::new(move |state| {
            if points.fetch_sub(1, Ordering::Relaxed) == 1 {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
            }
        })));
        let config = self.launch.config(CleaningMode::Inline);
        drop(Kv::open(memory.clone(), config).map_err(failed)?);
        memory.observe(None);
        let state = captured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let state = state.unwrap_or_else(|| memory.crash_state());
        self.memory = Some(self.after_power_cut(&state));
        Ok(())
    }
}

/// Syncs a simulated file again and again, with pauses of random length, until `stopped`.
fn sync_until(memory: &Sim, stopped: &AtomicBool, mut rng: Rng) {
    while !stopped.load(Ordering::Relaxed) {
        // A sync that fails wakes the server's workers, which read the failure from the medium.
        memory.sync().ok();
        let most = 1 << rng.below(SYNC_PAUSE_BITS);
        thread::sleep(Duration::from_micros(rng.below(most)));
    }
}
