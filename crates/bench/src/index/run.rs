//! Measurements of any contender: phases of one kind of operation, and PiBench's mix.

use std::thread;
use std::time::Duration;

use farbank_index::IndexError;

use super::contender::{IndexContender, IndexSession, IndexSubject};
use super::keys::{IdGenerator, MinStdEngine, key_of, odd};
use super::phase::{ENDS, PhaseEnd, PhasePlan, ThreadsPhase, phase};
use super::{IndexOptions, MixRatios};
use crate::chart::Charts;
use crate::figure::{Error, Figure, ProgressFn};

/// For throughput, one of this many operations is timed.
const TIMED_ONE_IN: u64 = 128;
/// Reported quantiles.
const QUANTILES: [(f64, &str); 6] = [
    (0.5, "half"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
];

// Results of an operation of a phase.
const NOT_DONE: usize = 0;
const DONE: usize = 1;

/// Operation of a phase on key number n. Returns whether it took effect.
type PhaseOp = dyn Fn(&mut dyn IndexSession, u64) -> Result<bool, IndexError> + Sync;

/// Phases with the expected result of their operations: 1 if they take effect, 0 if not.
const PHASES: [(&str, u64, &PhaseOp); 4] = [
    ("insert", 1, &|session, n| session.insert(odd(n), n)),
    ("positive search", 1, &|session, n| {
        Ok(session.get(odd(n))? == Some(n))
    }),
    ("negative search", 0, &|session, n| {
        Ok(session.get(odd(n) - 1)?.is_some())
    }),
    ("delete", 1, &|session, n| session.remove(odd(n))),
];

/// Runs the phases one after another. Calls `tell` to make figures of each.
fn phases(
    options: &IndexOptions,
    contender: &IndexContender,
    timed_one_in: u64,
    watch: ProgressFn<'_>,
    tell: &mut dyn FnMut(&'static str, &ThreadsPhase),
) -> Result<Vec<Figure>, Error> {
    let subject = contender.make(options, options.records, watch)?;
    let plan = |what| PhasePlan {
        what,
        threads: options.threads,
        until: PhaseEnd::Done(options.records),
        timed_one_in,
        sampling: None,
    };
    let mut figures = Vec::new();
    for (what, expected, op) in PHASES {
        let phase = phase(&*subject, plan(what), watch, |_| {
            move |session: &mut dyn IndexSession, n| Ok(usize::from(op(session, n)?))
        })?;
        tell(what, &phase);
        let wrong = phase.ends[1 - expected as usize];
        let name = format!("{what}, answers wrong");
        figures.push(Figure::counted(contender.name(), name, wrong as f64).at_most(0.0));
    }
    Ok(figures)
}

/// Measures insert, positive and negative search, and delete. Also reports each rate relative to papaya's, which
/// `beside` holds.
pub(super) fn throughput(
    options: &IndexOptions,
    contender: &IndexContender,
    beside: &mut Vec<(&'static str, f64)>,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let name = contender.name();
    let mut tell = |what: &'static str, phase: &ThreadsPhase| {
        figures.push(Figure::measured(name, what, phase.millions).unit("M/s"));
        if *contender == IndexContender::Papaya {
            beside.push((what, phase.millions));
        } else if let Some((_, other)) = beside.iter().find(|(phase, _)| *phase == what) {
            let of = format!("{what}, times papaya");
            figures.push(Figure::measured(name, of, phase.millions / other));
        }
        for (share, of) in [QUANTILES[0], QUANTILES[2]] {
            let ns = phase.quantile(share) as f64;
            figures.push(Figure::measured(name, format!("{what}, {of} take"), ns).unit("ns"));
        }
    };
    let wrong = phases(options, contender, TIMED_ONE_IN, watch, &mut tell)?;
    figures.extend(wrong);
    Ok(figures)
}

/// Measures how long the operations of each phase take. Every operation is timed.
pub(super) fn latency(
    options: &IndexOptions,
    contender: &IndexContender,
    charts: &mut Charts,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let name = contender.name();
    let mut tell = |what: &'static str, phase: &ThreadsPhase| {
        let least = phase.quantile(0.0) as f64;
        figures.push(Figure::measured(name, format!("{what}, the fastest"), least).unit("ns"));
        for (share, of) in QUANTILES {
            let ns = phase.quantile(share) as f64;
            figures.push(Figure::measured(name, format!("{what}, {of} take"), ns).unit("ns"));
        }
        let most = phase.quantile(1.0) as f64;
        figures.push(Figure::measured(name, format!("{what}, the slowest"), most).unit("ns"));
        let nines = |share: f64| -(1.0 - share).log10();
        let power = |share| (phase.quantile(share).max(1) as f64).log10();
        let points = QUANTILES.map(|(share, _)| (nines(share), power(share)));
        let axes = (
            "nines of the share that take at most as long",
            "ns, as a power of ten",
        );
        charts.line(what, axes, name, points.to_vec());
    };
    let wrong = phases(options, contender, 1, watch, &mut tell)?;
    figures.extend(wrong);
    Ok(figures)
}

/// Kind of operation that a draw of the mix gives.
#[derive(Clone, Copy)]
pub(super) enum DrawnOp {
    Read,
    Insert,
    Update,
    Remove,
    Scan,
}

impl DrawnOp {
    /// Returns the number of the result: the kind, and whether the operation took effect.
    fn end(self, done: bool) -> usize {
        2 * self as usize + usize::from(done)
    }
}

impl MixRatios {
    fn op(&self, drawn: f64) -> DrawnOp {
        match drawn {
            d if d < self.read => DrawnOp::Read,
            d if d < self.read + self.insert => DrawnOp::Insert,
            d if d < self.read + self.insert + self.update => DrawnOp::Update,
            d if d < self.read + self.insert + self.update + self.scan => DrawnOp::Scan,
            _ => DrawnOp::Remove,
        }
    }
}

/// Result of PiBench's load and run.
pub(super) struct MixedRun {
    /// Time to load ids 1 to `records`.
    pub(super) load: Duration,
    /// The run. Its operations are counted by kind and result; see [`MixedRun::tally`].
    pub(super) run: ThreadsPhase,
}

impl MixedRun {
    /// Returns the number of operations of a kind, and how many of them took effect.
    pub(super) fn tally(&self, kind: DrawnOp) -> (u64, u64) {
        let ends: &[u64; ENDS] = &self.run.ends;
        let (not, done) = (ends[kind.end(false)], ends[kind.end(true)]);
        (not + done, done)
    }

    /// Returns the number of operations.
    pub(super) fn completed(&self) -> u64 {
        self.run.ends.iter().sum()
    }

    /// Returns the number of operations that took effect.
    pub(super) fn succeeded(&self) -> u64 {
        self.run.ends.iter().skip(DONE).step_by(2).sum()
    }
}

/// Returns the inserts for which ids are laid out: of all threads, and of one. A run that ends by time has no limit,
/// like PiBench's, which uses the largest integers that floats represent.
fn inserts(options: &IndexOptions) -> (u64, u64) {
    let threads = options.threads;
    if options.seconds.is_none() {
        let inserts = (options.operations as f64 * options.ratios.insert) as u64;
        return (inserts, 10 + inserts / u64::from(threads));
    }
    let inserts = i64::MAX as f32 * options.ratios.insert as f32;
    let of_thread = 10.0 + inserts / threads as f32;
    (inserts as u64, of_thread as u64)
}

/// Returns the largest possible number of keys in a mix. For a run that ends by time it is what a fast table can
/// insert.
pub(super) fn most_records(options: &IndexOptions) -> u64 {
    const INSERTS_A_SECOND: u64 = 4_000_000;
    let Some(seconds) = options.seconds else {
        return options.records + options.operations;
    };
    let processors = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let threads = u64::from(options.threads).min(processors);
    let most = u64::from(seconds) * threads * INSERTS_A_SECOND;
    options.records + (most as f64 * options.ratios.insert) as u64
}

/// Operations of one thread, drawn like PiBench's.
struct OpDraws<'a> {
    options: &'a IndexOptions,
    ids: &'a IdGenerator,
    engine: MinStdEngine,
    /// The next id to insert.
    next: u64,
    /// Distance between the first ids that two threads insert.
    apart: u64,
}

impl<'a> OpDraws<'a> {
    fn new(options: &'a IndexOptions, ids: &'a IdGenerator, thread: u64) -> OpDraws<'a> {
        let (_, apart) = inserts(options);
        OpDraws {
            options,
            ids,
            engine: MinStdEngine::new(options.seed.wrapping_mul(thread + 1)),
            next: options.records + 1 + apart * thread,
            apart,
        }
    }

    /// Draws an operation and its id. Ids that are not inserted are drawn from all possible ids.
    fn draw(&mut self) -> (DrawnOp, u64) {
        match self.options.ratios.op(self.engine.canonical()) {
            DrawnOp::Insert => {
                self.next += 1;
                (DrawnOp::Insert, self.next - 1)
            }
            other => (other, self.ids.draw(&mut self.engine)),
        }
    }

    /// Like [`draw`](Self::draw), but draws from ids that exist if all threads have inserted as many as this one. Id
    /// 0, which never exists, can be drawn too, as in PiBench.
    fn draw_there(&mut self, inserted: u64) -> (DrawnOp, u64) {
        let (kind, id) = self.draw();
        if matches!(kind, DrawnOp::Insert) {
            return (kind, id);
        }
        let records = self.options.records;
        let id = id % (records + inserted * u64::from(self.options.threads));
        match id.checked_sub(records) {
            None => (kind, id),
            Some(later) => (
                kind,
                records + self.apart * (later / inserted) + later % inserted,
            ),
        }
    }
}

/// Executes a drawn operation and returns the number of its result.
fn act(
    session: &mut dyn IndexSession,
    (kind, id): (DrawnOp, u64),
    value: u64,
    scan_size: u32,
) -> Result<usize, IndexError> {
    let key = key_of(id);
    let done = match kind {
        DrawnOp::Read => session.get(key)?.is_some(),
        DrawnOp::Insert => session.insert(key, value)?,
        DrawnOp::Update => session.update(key, value)?,
        DrawnOp::Remove => session.remove(key)?,
        DrawnOp::Scan => session.scan(key, scan_size)?,
    };
    Ok(kind.end(done))
}

/// Loads ids 1 to `records` with one thread. Then each thread executes its drawn operations.
pub(super) fn mixed(
    options: &IndexOptions,
    subject: &dyn IndexSubject,
    watch: ProgressFn<'_>,
) -> Result<MixedRun, Error> {
    let load = load(options, subject, watch)?;
    let ids = IdGenerator::new(ids_drawn(options), options.distribution);
    let run = match options.seconds {
        None => by_count(options, subject, &ids, watch),
        Some(seconds) => by_clock(options, (subject, &ids), seconds, watch),
    }?;
    Ok(MixedRun { load, run })
}

fn plan(options: &IndexOptions, until: PhaseEnd) -> PhasePlan {
    PhasePlan {
        what: "mix",
        threads: options.threads,
        until,
        timed_one_in: options.timed_one_in,
        sampling: Some(Duration::from_millis(u64::from(options.sampling_ms))),
    }
}

/// Runs a fixed number of operations, drawn before the clock starts.
fn by_count(
    options: &IndexOptions,
    subject: &dyn IndexSubject,
    ids: &IdGenerator,
    watch: ProgressFn<'_>,
) -> Result<ThreadsPhase, Error> {
    let threads = u64::from(options.threads);
    let share = options.operations.div_ceil(threads);
    let drawn = |thread| {
        let mut draws = OpDraws::new(options, ids, thread);
        (0..share).map(|_| draws.draw()).collect()
    };
    let drawn: Vec<Vec<_>> = (0..threads).map(drawn).collect();
    let plan = plan(options, PhaseEnd::Done(options.operations));
    phase(subject, plan, watch, |thread| {
        let drawn = &drawn[thread as usize];
        move |session: &mut dyn IndexSession, n| {
            act(session, drawn[(n % share) as usize], n, options.scan_size)
        }
    })
}

/// Runs operations for a fixed time, in whole windows. Each is drawn just before it is executed.
fn by_clock(
    options: &IndexOptions,
    (subject, ids): (&dyn IndexSubject, &IdGenerator),
    seconds: u32,
    watch: ProgressFn<'_>,
) -> Result<ThreadsPhase, Error> {
    let looks = u64::from(seconds) * 1000 / u64::from(options.sampling_ms);
    let plan = plan(options, PhaseEnd::Samples(looks.max(1) as usize));
    phase(subject, plan, watch, |thread| {
        let (mut draws, mut inserted) = (OpDraws::new(options, ids, thread), 0);
        move |session: &mut dyn IndexSession, n| {
            let end = act(session, draws.draw_there(inserted), n, options.scan_size)?;
            inserted += u64::from(end == DrawnOp::Insert.end(true));
            Ok(end)
        }
    })
}

/// Returns the number of ids to draw from. If there are more inserts than a float can count, the records are lost in
/// rounding, as in PiBench.
fn ids_drawn(options: &IndexOptions) -> u64 {
    let (inserts, _) = inserts(options);
    match options.seconds {
        None => options.records + inserts,
        Some(_) => (options.records as f32 + inserts as f32) as u64,
    }
}

fn load(
    options: &IndexOptions,
    subject: &dyn IndexSubject,
    watch: ProgressFn<'_>,
) -> Result<Duration, Error> {
    let records = if options.skip_load {
        0
    } else {
        options.records
    };
    let plan = PhasePlan {
        what: "load",
        threads: 1,
        until: PhaseEnd::Done(records),
        timed_one_in: 0,
        sampling: None,
    };
    let loaded = phase(subject, plan, watch, |_| {
        |session: &mut dyn IndexSession, n| Ok(usize::from(session.insert(key_of(n + 1), n)?))
    })?;
    match loaded.ends[NOT_DONE] {
        0 => Ok(loaded.took),
        there => Err(Error::Failed(format!(
            "the load found {there} of its keys already in the table"
        ))),
    }
}

/// Reports PiBench's mix as figures.
pub(super) fn mix(
    options: &IndexOptions,
    contender: &IndexContender,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let subject = contender.make(options, most_records(options), watch)?;
    let mixed = mixed(options, &*subject, watch)?;
    let succeeded = mixed.succeeded() as f64 / mixed.completed() as f64;
    let run = &mixed.run;
    let figure = |name: &str, value| Figure::measured(contender.name(), name, value);
    let mut figures = vec![
        figure("completed", run.millions).unit("M/s"),
        figure("succeeded", run.millions * succeeded).unit("M/s"),
    ];
    if options.timed_one_in > 0 {
        for (share, of) in &QUANTILES[..4] {
            let ns = run.quantile(*share) as f64;
            figures.push(figure(&format!("{of} take"), ns).unit("ns"));
        }
        figures.push(figure("the slowest timed", run.quantile(1.0) as f64).unit("ns"));
    }
    Ok(figures)
}
