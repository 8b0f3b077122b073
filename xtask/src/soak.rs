//! Suite `soak`: checks that memory use and write amplification do not grow while a server runs for long.
//!
//! One client fills a pool until 60 percent of it is live. It then sets, deletes and expires values of mixed sizes at
//! random. Each second the suite reads the server's anonymous memory, its moved bytes and its tombstone bytes. None of
//! the three may grow by more than its bound from the second third of the run to the last third.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use crate::RunSize;
use crate::run::farbank;
use crate::serving::Serving;
use crate::wire;

/// Duration of a run, in seconds.
const SECONDS: u64 = 120;
/// Duration of a gate, in seconds.
const GATE_SECONDS: u64 = 1_200;
/// Shortest useful run, in seconds: thirty samples.
pub(crate) const SECONDS_MIN: u64 = 30;
const POOL: &str = "256mb";
/// Share of the pool that is live, in percent.
const LIVE_PERCENT: u64 = 60;
const KEYS: u64 = 600_000;
/// Requests that are sent before their replies are read.
const BATCH: usize = 64;
/// Batches between two checks of the pool's live bytes.
const LOOK_EVERY: u64 = 64;
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Least number of samples in a third of a run.
const SAMPLES_MIN: usize = 5;
/// Largest allowed ratio of the mean of the last third to that of the second third: for memory, write amplification and
/// tombstones. The last two vary by themselves.
const GROWTH: f64 = 1.05;
const GROWTH_OF_WRITES: f64 = 1.10;
const GROWTH_OF_TOMBSTONES: f64 = 1.25;
/// Tombstones below this fraction (1/200) of the pool count as this fraction, so that small values are not compared.
const FEW_TOMBSTONES: f64 = 200.0;

/// Figures of the server's INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SoakSample {
    pool: f64,
    live: f64,
    anonymous: f64,
    tombstones: f64,
    user: f64,
    moved: f64,
}

impl SoakSample {
    fn of(info: &str) -> Result<SoakSample, String> {
        let field = |name: &str| {
            let values = info.lines().filter_map(|line| line.trim().split_once(':'));
            let found = values.into_iter().find(|(found, _)| *found == name);
            let value = found.and_then(|(_, value)| value.parse().ok());
            value.ok_or(format!("INFO has no field {name}"))
        };
        Ok(SoakSample {
            pool: field("pool_bytes")?,
            live: field("pool_live_bytes")?,
            anonymous: field("used_memory")?,
            tombstones: field("pool_tombstone_bytes")?,
            user: field("pool_user_bytes")?,
            moved: field("pool_moved_bytes")?,
        })
    }
}

/// Runs a server under load for the duration of a suite or of a gate.
pub(crate) fn run_size(size: RunSize) -> Result<(), String> {
    run(match size {
        RunSize::Suite => SECONDS,
        RunSize::Gate => GATE_SECONDS,
    })
}

/// Runs a server under load for `seconds` and checks its figures.
pub(crate) fn run(seconds: u64) -> Result<(), String> {
    let folder = env::temp_dir().join(format!("farbank-soak-{}", process::id()));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let pool = match Path::new("/dev/shm").is_dir() {
        true => Path::new("/dev/shm").join(format!("farbank-soak-{}.pool", process::id())),
        false => folder.join("pool"),
    };
    let watched = serve_and_watch(&pool, seconds);
    // A file that stays does no harm.
    let _ = fs::remove_file(&pool);
    let _ = fs::remove_dir_all(&folder);
    judge(&watched?)
}

fn serve_and_watch(pool: &Path, seconds: u64) -> Result<Vec<SoakSample>, String> {
    let mut command = farbank();
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .args(["--size", POOL, "--pool"])
        .arg(pool);
    let server = Serving::start(&mut command, "redis://")?;
    let mut client = SoakClient::new(&server.port)?;
    while client.live_percent()? < LIVE_PERCENT {
        client.batch(&mut |client| client.set(false))?;
    }
    let (start, mut samples) = (Instant::now(), vec![client.sample()?]);
    let tenth = Duration::from_secs(seconds) / 10;
    let (mut told, mut batches) = (0, 0_u64);
    println!("  seconds   live   anonymous  tombstones   amplification");
    while start.elapsed() < Duration::from_secs(seconds) {
        batches += 1;
        if batches.is_multiple_of(LOOK_EVERY) {
            client.sample()?;
        }
        let is_too_full = client.live > LIVE_PERCENT as f64;
        client.batch(&mut |client| client.change(is_too_full))?;
        if start.elapsed() >= SAMPLE_EVERY * samples.len() as u32 {
            samples.push(client.sample()?);
        }
        if start.elapsed() >= tenth * (told + 1) {
            told += 1;
            let begin = samples.len() * (told as usize - 1) / told as usize;
            println!("{}", row(start.elapsed(), &samples[begin..]));
        }
    }
    drop(client);
    server.end()?;
    Ok(samples)
}

/// Returns a line of the table: the last of `samples`, and the write amplification between the first and the last.
fn row(elapsed: Duration, samples: &[SoakSample]) -> String {
    let last = samples.last().copied().unwrap_or_default();
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    format!(
        "{:9.0}  {:4.0} %  {:6.1} MiB  {:6.2} MiB  {:14.3}",
        elapsed.as_secs_f64(),
        100.0 * last.live / last.pool.max(1.0),
        mib(last.anonymous),
        mib(last.tombstones),
        writes_a_write(samples),
    )
}

/// Returns the bytes written for each byte that clients wrote, between the first and the last of `samples`.
fn writes_a_write(samples: &[SoakSample]) -> f64 {
    let [Some(first), Some(last)] = [samples.first(), samples.last()] else {
        return 1.0;
    };
    let user = (last.user - first.user).max(1.0);
    1.0 + (last.moved - first.moved) / user
}

/// Checks that all figures have levelled off.
fn judge(samples: &[SoakSample]) -> Result<(), String> {
    let thirds = |n: usize| &samples[samples.len() * n / 3..samples.len() * (n + 1) / 3];
    let [second, last] = [thirds(1), thirds(2)];
    if second.len() < SAMPLES_MIN || last.len() < SAMPLES_MIN {
        return Err(format!("{} samples are too few; run longer", samples.len()));
    }
    let mean = |samples: &[SoakSample], of: fn(&SoakSample) -> f64| {
        samples.iter().map(of).sum::<f64>() / samples.len() as f64
    };
    let pool = mean(last, |sample| sample.pool);
    let few = pool / FEW_TOMBSTONES;
    let figures = [
        (
            "anonymous memory",
            mean(second, |sample| sample.anonymous),
            mean(last, |sample| sample.anonymous),
            GROWTH,
        ),
        (
            "tombstone bytes",
            mean(second, |sample| sample.tombstones).max(few),
            mean(last, |sample| sample.tombstones).max(few),
            GROWTH_OF_TOMBSTONES,
        ),
        (
            "write amplification",
            writes_a_write(second),
            writes_a_write(last),
            GROWTH_OF_WRITES,
        ),
    ];
    let mut grown = String::new();
    for (name, before, after, most) in figures {
        let part = after / before.max(f64::MIN_POSITIVE);
        println!("{name}: the last third is {part:.3} times the second; at most {most} is allowed");
        if part > most {
            let _ = write!(grown, "{name} grew from {before:.3} to {after:.3}; ");
        }
    }
    match grown.is_empty() {
        true => Ok(()),
        false => Err(grown.trim_end_matches("; ").into()),
    }
}

/// A connection to the server, and a random number generator.
struct SoakClient {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    seed: u64,
    value: Vec<u8>,
    /// Live share of the pool at the last sample, in percent.
    live: f64,
}

impl SoakClient {
    fn new(port: &str) -> Result<SoakClient, String> {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}"));
        let stream = stream.map_err(|e| format!("cannot connect: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(SoakClient {
            stream: BufReader::new(stream),
            out: Vec::new(),
            seed: 28,
            value: vec![b'v'; 64 << 10],
            live: 0.0,
        })
    }

    /// Returns a random number below `limit` (splitmix64).
    fn below(&mut self, limit: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Returns the length of the next value: usually small, rarely too large for the log.
    fn value_bytes(&mut self) -> usize {
        let most = match self.below(1_000) {
            0 => 64 << 10,
            1..100 => 4 << 10,
            100..500 => 512,
            _ => 100,
        };
        self.below(most) as usize
    }

    fn request(&mut self, words: &[&[u8]]) {
        self.out.extend_from_slice(&wire::request(words));
    }

    fn key(&mut self) -> String {
        format!("key:{}", self.below(KEYS))
    }

    fn set(&mut self, expires: bool) {
        let (key, len) = (self.key(), self.value_bytes());
        let value = std::mem::take(&mut self.value);
        let ms = (1 + self.below(20_000)).to_string();
        match expires {
            true => self.request(&[b"SET", key.as_bytes(), &value[..len], b"PX", ms.as_bytes()]),
            false => self.request(&[b"SET", key.as_bytes(), &value[..len]]),
        }
        self.value = value;
    }

    /// Requests one random change. If the pool is too full, it is usually a delete.
    fn change(&mut self, is_too_full: bool) {
        let deletes = if is_too_full { 70 } else { 10 };
        match self.below(100) {
            n if n < deletes => {
                let key = self.key();
                self.request(&[b"DEL", key.as_bytes()]);
            }
            n if n < deletes + 10 => {
                let (key, seconds) = (self.key(), (1 + self.below(20)).to_string());
                self.request(&[b"EXPIRE", key.as_bytes(), seconds.as_bytes()]);
            }
            n if n < deletes + 20 => self.set(true),
            _ => self.set(false),
        }
    }

    /// Sends a batch of requests that `ask` writes, and reads their replies.
    fn batch(&mut self, ask: &mut dyn FnMut(&mut SoakClient)) -> Result<(), String> {
        for _ in 0..BATCH {
            ask(self);
        }
        self.send()?;
        for _ in 0..BATCH {
            self.answer()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), String> {
        let sent = self.stream.get_mut().write_all(&self.out);
        self.out.clear();
        sent.map_err(|e| format!("cannot send to the server: {e}"))
    }

    /// Reads one reply. Returns an error if the reply is an error.
    fn answer(&mut self) -> Result<String, String> {
        let broken = |e| format!("cannot read a reply of the server: {e}");
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(broken)?;
        let len = match line.trim_end().split_at_checked(1) {
            Some(("$", len)) => len.parse::<usize>().ok(),
            Some(("-", why)) => return Err(format!("the server replied with the error {why}")),
            Some(_) => None,
            None => return Err("the server closed the connection".into()),
        };
        let Some(len) = len else {
            return Ok(line);
        };
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes).map_err(broken)?;
        Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    fn sample(&mut self) -> Result<SoakSample, String> {
        self.request(&[b"INFO"]);
        self.send()?;
        let sample = SoakSample::of(&self.answer()?)?;
        self.live = 100.0 * sample.live / sample.pool.max(1.0);
        Ok(sample)
    }

    fn live_percent(&mut self) -> Result<u64, String> {
        self.sample()?;
        Ok(self.live as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(grow: fn(f64) -> SoakSample) -> Vec<SoakSample> {
        (0..90).map(|n| grow(f64::from(n))).collect()
    }

    fn level(n: f64) -> SoakSample {
        SoakSample {
            pool: 1e9,
            live: 6e8,
            anonymous: 1e8,
            tombstones: 1e7,
            user: n * 1e6,
            moved: n * 5e5,
        }
    }

    #[test]
    fn constant_figures_pass_and_growing_figures_fail() {
        assert_eq!(judge(&samples(level)), Ok(()));
        let grown = |grow| judge(&samples(grow)).unwrap_err();
        let why = grown(|n| SoakSample {
            anonymous: 1e8 + n * 1e6,
            ..level(n)
        });
        assert!(why.starts_with("anonymous memory grew"), "{why}");
        let why = grown(|n| SoakSample {
            tombstones: 1e7 + n * 1e6,
            ..level(n)
        });
        assert!(why.starts_with("tombstone bytes grew"), "{why}");
        let why = grown(|n| SoakSample {
            moved: n * n * 1e5,
            ..level(n)
        });
        assert!(why.starts_with("write amplification grew"), "{why}");
        assert!(
            judge(&samples(level)[..5]).is_err(),
            "five samples are too few"
        );
    }

    #[test]
    fn growth_in_the_first_third_is_allowed() {
        let starts = samples(|n| SoakSample {
            anonymous: if n < 30.0 { n * 1e6 } else { 1e8 },
            ..level(n)
        });
        assert_eq!(judge(&starts), Ok(()));
    }

    #[test]
    fn info_is_parsed_and_a_missing_field_is_reported() {
        let info = "# Memory\r\nused_memory:7\r\n# Farbank\r\npool_bytes:100\r\npool_live_bytes:60\r\n\
                    pool_tombstone_bytes:1\r\npool_user_bytes:10\r\npool_moved_bytes:5\r\n";
        let sample = SoakSample::of(info).unwrap();
        assert_eq!((sample.anonymous, sample.live), (7.0, 60.0));
        assert_eq!(writes_a_write(&[SoakSample::default(), sample]), 1.5);
        let missing = SoakSample::of("used_memory:7\r\n").unwrap_err();
        assert!(missing.contains("pool_bytes"), "{missing}");
    }
}
