//! Hit ratios of the cache, with both of its orders of eviction, and of memcached, with equal memory for items and the same
//! requests.
//!
//! A client reads, and stores each item that it does not find. Requests come in windows: first all reads of a window,
//! then its writes. The first half of the requests fills the cache; the second half is counted. memcached runs with
//! one thread and is reached over a socket; the cache is called directly. Nothing here depends on time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farbank_cache::{Cache, CacheSession, EvictionOrder};
use farbank_pm::media::Mapped;
use farbank_store::{Ops, ReadView, Session, Store, Value};

use super::{CacheOptions, failed, in_memory, named};
use crate::figure::{Error, Figure, ProgressFn, Report, report_progress};
use crate::index::keys::{Distribution, IdGenerator, MinStdEngine as Draws};

/// Number of requests in a window.
const WINDOW: usize = 64;
/// In a run with a scan, one of this many requests belongs to the scan.
const SCAN_ONE_IN: u64 = 4;
/// Largest difference from memcached's hit ratio, in percentage points.
const POINTS: f64 = 1.0;
/// Longest time until memcached listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// Generator of requested keys.
struct RequestedKeys {
    ids: IdGenerator,
    draws: Draws,
    scans: bool,
    /// Next key of the scan. Scanned keys lie beyond the drawn ones.
    scanned: u64,
    count: u64,
}

impl RequestedKeys {
    fn next(&mut self) -> u64 {
        self.count += 1;
        if self.scans && self.count.is_multiple_of(SCAN_ONE_IN) {
            self.scanned += 1;
            return self.scanned;
        }
        self.ids.draw(&mut self.draws)
    }
}

/// Returns the length of a key's value: from half of `mean` to one and a half of it, and always the same for a key.
fn value_bytes(mean: usize, key: u64) -> usize {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mean / 2 + (mixed as usize % (mean + 1))
}

fn name(key: u64) -> String {
    format!("key:{key:012}")
}

/// A cache under test.
trait RequestKind {
    /// Returns for each key whether it was found.
    fn find(&mut self, keys: &[u64]) -> Result<Vec<bool>, Error>;
    /// Stores `keys`.
    fn store(&mut self, keys: &[u64]) -> Result<(), Error>;
}

/// Runs the requests. Returns the hit ratio in percent.
fn ratio(
    options: &CacheOptions,
    asked: &mut dyn RequestKind,
    mut requests: RequestedKeys,
    watch: ProgressFn<'_>,
    what: &str,
) -> Result<f64, Error> {
    let (mut found, mut counted) = (0_u64, 0_u64);
    let mut done = 0;
    while done < options.requests {
        if done.is_multiple_of(1 << 16) {
            report_progress(watch, what, done, options.requests)?;
        }
        let keys: Vec<u64> = (0..WINDOW).map(|_| requests.next()).collect();
        let there = asked.find(&keys)?;
        let mut missed: Vec<u64> = keys
            .iter()
            .zip(&there)
            .filter(|(_, there)| !**there)
            .map(|(key, _)| *key)
            .collect();
        missed.sort_unstable();
        missed.dedup();
        asked.store(&missed)?;
        if done >= options.requests / 2 {
            found += there.iter().filter(|there| **there).count() as u64;
            counted += WINDOW as u64;
        }
        done += WINDOW as u64;
    }
    Ok(found as f64 / counted.max(1) as f64 * 100.0)
}

pub(super) fn run(options: &CacheOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut report = Report::default();
    for (stream, theta, scans) in [
        ("zipfian 0.9", 0.9, false),
        ("zipfian 0.99", 0.99, false),
        ("zipfian 0.99, one in four a scan's", 0.99, true),
    ] {
        let requests = || RequestedKeys {
            ids: IdGenerator::new(options.items, Distribution::Zipfian(theta)),
            draws: Draws::new(options.seed + 1),
            scans,
            scanned: options.items,
            count: 0,
        };
        let mut s3 = OurCache::new(options, EvictionOrder::S3Fifo)?;
        let by_queues = ratio(options, &mut s3, requests(), watch, stream)?;
        let figure = Figure::counted("hits", format!("{stream}: mdb, s3-fifo"), by_queues);
        report.figures.push(figure.unit("%"));
        drop(s3);
        let mut ours = OurCache::new(options, EvictionOrder::Lru)?;
        let own = ratio(options, &mut ours, requests(), watch, stream)?;
        let figure = Figure::counted("hits", format!("{stream}: mdb"), own).unit("%");
        let Some(program) = &options.memcached else {
            report.figures.push(figure);
            continue;
        };
        let mut theirs = MemcachedProcess::start(program, options)?;
        let other = ratio(options, &mut theirs, requests(), watch, stream)?;
        report.figures.push(figure.at_least(other - POINTS));
        let figure = Figure::counted("hits", format!("{stream}: memcached"), other);
        report.figures.push(figure.unit("%"));
        let near = ours.cache.stats().index_bytes;
        report.notes.push(format!(
            "{stream}: the cache's metadata takes {:.1} MiB of DRAM in addition; memcached's item headers are in its pages, its \
             hash table is additional",
            near as f64 / (1 << 20) as f64
        ));
    }
    Ok(report)
}

/// Our cache, called directly.
struct OurCache {
    cache: Cache<Mapped>,
    session: CacheSession<Mapped>,
    mean: usize,
}

impl OurCache {
    fn new(options: &CacheOptions, eviction: EvictionOrder) -> Result<OurCache, Error> {
        let cache = in_memory(options.mib, eviction)?;
        Ok(OurCache {
            session: cache.new_session(),
            cache,
            mean: options.value_bytes,
        })
    }
}

impl RequestKind for OurCache {
    fn find(&mut self, keys: &[u64]) -> Result<Vec<bool>, Error> {
        let mut out = Vec::new();
        keys.iter()
            .map(|key| {
                out.clear();
                let name = name(*key);
                let key = named(name.as_bytes());
                let found = self
                    .session
                    .get(key, ReadView::Durable, &mut out, &mut |_, _| true);
                found.map_err(failed)
            })
            .collect()
    }

    fn store(&mut self, keys: &[u64]) -> Result<(), Error> {
        for key in keys {
            let (name, bytes) = (name(*key), vec![b'x'; value_bytes(self.mean, *key)]);
            let value = Value {
                bytes: &bytes,
                ..Value::default()
            };
            let stored = self.session.put(named(name.as_bytes()), value);
            stored.map_err(failed)?;
        }
        self.session.commit().map(drop).map_err(failed)
    }
}

/// memcached in a child process, which is killed on drop.
struct MemcachedProcess {
    process: Child,
    stream: BufReader<TcpStream>,
    mean: usize,
}

impl MemcachedProcess {
    fn start(program: &Path, options: &CacheOptions) -> Result<MemcachedProcess, Error> {
        let failed = Error::doing("start memcached");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .map_err(failed)?
            .port();
        let mut command = Command::new(program);
        command
            .args(["-U", "0", "-t", "1", "-l", "127.0.0.1", "-u", "root"])
            .args(["-m", &options.mib.to_string(), "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::Missing {
                program: program.display().to_string(),
                package: "memcached",
            },
            _ => Error::Failed(format!("cannot start {}: {source}", program.display())),
        })?;
        let started = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => {
                    return Ok(MemcachedProcess {
                        process,
                        stream: BufReader::new(stream),
                        mean: options.value_bytes,
                    });
                }
                Err(_) if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    return Err(Error::Failed(format!(
                        "memcached accepts no connections: {error}"
                    )));
                }
            }
        }
    }

    fn send(&mut self, text: &[u8]) -> Result<(), Error> {
        let sent = self.stream.get_mut().write_all(text);
        sent.map_err(Error::doing("write to memcached"))
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        read.map_err(Error::doing("read from memcached"))?;
        Ok(line)
    }
}

impl Drop for MemcachedProcess {
    fn drop(&mut self) {
        // Killing fails if the process has ended already. It must be waited for in any case.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl RequestKind for MemcachedProcess {
    fn find(&mut self, keys: &[u64]) -> Result<Vec<bool>, Error> {
        let mut text = String::new();
        for key in keys {
            text += &format!("get {}\r\n", name(*key));
        }
        self.send(text.as_bytes())?;
        let mut there = Vec::new();
        for _ in keys {
            let line = self.line()?;
            if line == "END\r\n" {
                there.push(false);
                continue;
            }
            let bytes = line
                .trim_end()
                .rsplit(' ')
                .next()
                .and_then(|n| n.parse().ok());
            let bytes: usize = bytes.ok_or_else(|| {
                Error::Failed(format!("unexpected reply of memcached to get: {line:?}"))
            })?;
            let mut value = vec![0; bytes + 2];
            let read = self.stream.read_exact(&mut value);
            read.map_err(Error::doing("read from memcached"))?;
            self.line()?;
            there.push(true);
        }
        Ok(there)
    }

    fn store(&mut self, keys: &[u64]) -> Result<(), Error> {
        let mut text = Vec::new();
        for key in keys {
            let bytes = value_bytes(self.mean, *key);
            text.extend_from_slice(format!("set {} 0 0 {bytes}\r\n", name(*key)).as_bytes());
            text.resize(text.len() + bytes, b'x');
            text.extend_from_slice(b"\r\n");
        }
        self.send(&text)?;
        for _ in keys {
            self.line()?;
        }
        Ok(())
    }
}
