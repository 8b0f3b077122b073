//! What is measured of any contender: phases of one kind of operation, and PiBench's mix.

use std::time::Duration;

use farbank_index::Refused;

use super::contender::{Contender, Session, Subject};
use super::keys::{Engine, Ids, key_of, odd};
use super::phase::{ENDS, Phase, Plan, phase};
use super::{Options, Ratios};
use crate::chart::Charts;
use crate::figure::{Error, Figure};

/// For throughput one operation in so many is timed.
const TIMED_ONE_IN: u64 = 128;
/// Shares of operations whose slowest is told.
const QUANTILES: [(f64, &str); 6] = [
    (0.5, "half"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
];

/// How an operation of a phase ended.
const NOT_DONE: usize = 0;
const DONE: usize = 1;

/// What a phase does to the n-th key.
type Op = dyn Fn(&mut dyn Session, u64) -> Result<bool, Refused> + Sync;

/// The phases, and which share of their operations does what it should.
const PHASES: [(&str, u64, &Op); 4] = [
    ("insert", 1, &|session, n| session.insert(odd(n), n)),
    ("positive search", 1, &|session, n| {
        Ok(session.get(odd(n))? == Some(n))
    }),
    ("negative search", 0, &|session, n| {
        Ok(session.get(odd(n) - 1)?.is_some())
    }),
    ("delete", 1, &|session, n| session.remove(odd(n))),
];

/// Runs the phases, one after another, and has `tell` make figures of each.
fn phases(
    options: &Options,
    contender: &Contender,
    timed_one_in: u64,
    tell: &mut dyn FnMut(&'static str, &Phase),
) -> Result<Vec<Figure>, Error> {
    let subject = contender.make(options, options.records)?;
    let plan = Plan {
        threads: options.threads,
        count: options.records,
        timed_one_in,
        sampling: None,
    };
    let mut figures = Vec::new();
    for (what, expected, op) in PHASES {
        let phase = phase(&*subject, plan, |session, n| {
            Ok(usize::from(op(session, n)?))
        })?;
        tell(what, &phase);
        let wrong = phase.ends[1 - expected as usize];
        let name = format!("{what}, answers wrong");
        figures.push(Figure::counted(contender.name(), name, wrong as f64).at_most(0.0));
    }
    Ok(figures)
}

/// Insert, positive and negative search, delete: and what of `papaya`'s that is, whose rates are in `beside`.
pub(super) fn throughput(
    options: &Options,
    contender: &Contender,
    beside: &mut Vec<(&'static str, f64)>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let name = contender.name();
    let mut tell = |what: &'static str, phase: &Phase| {
        figures.push(Figure::measured(name, what, phase.millions).unit("M/s"));
        if *contender == Contender::Papaya {
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
    let wrong = phases(options, contender, TIMED_ONE_IN, &mut tell)?;
    figures.extend(wrong);
    Ok(figures)
}

/// How long the operations of each phase take: every one is timed.
pub(super) fn latency(
    options: &Options,
    contender: &Contender,
    charts: &mut Charts,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let name = contender.name();
    let mut tell = |what: &'static str, phase: &Phase| {
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
    let wrong = phases(options, contender, 1, &mut tell)?;
    figures.extend(wrong);
    Ok(figures)
}

/// What a draw of the mix means.
#[derive(Clone, Copy)]
pub(super) enum Drawn {
    Read,
    Insert,
    Update,
    Remove,
}

impl Drawn {
    /// How it ends: the number of its kind and whether it did something.
    fn end(self, done: bool) -> usize {
        2 * self as usize + usize::from(done)
    }
}

impl Ratios {
    fn op(&self, drawn: f64) -> Drawn {
        match drawn {
            d if d < self.read => Drawn::Read,
            d if d < self.read + self.insert => Drawn::Insert,
            d if d < self.read + self.insert + self.update => Drawn::Update,
            _ => Drawn::Remove,
        }
    }
}

/// PiBench's load and run.
pub(super) struct Mixed {
    /// How long ids 1 to `records` took to load.
    pub(super) load: Duration,
    /// The run; its operations end as [`Mixed::tally`] tells.
    pub(super) run: Phase,
}

impl Mixed {
    /// Operations of a kind, and those of them that did something.
    pub(super) fn tally(&self, kind: Drawn) -> (u64, u64) {
        let ends: &[u64; ENDS] = &self.run.ends;
        let (not, done) = (ends[kind.end(false)], ends[kind.end(true)]);
        (not + done, done)
    }

    /// Operations that did something.
    pub(super) fn succeeded(&self) -> u64 {
        self.run.ends.iter().skip(DONE).step_by(2).sum()
    }
}

/// The operations of each thread, drawn as PiBench draws them.
fn drawn(options: &Options) -> Vec<Vec<(Drawn, u64)>> {
    let threads = u64::from(options.threads);
    let inserts = (options.operations as f64 * options.ratios.insert) as u64;
    let ids = Ids::new(options.records + inserts, options.distribution);
    let share = options.operations.div_ceil(threads);
    let of_thread = |thread: u64| {
        let mut engine = Engine::new(options.seed.wrapping_mul(thread + 1));
        let mut next = options.records + 1 + (10 + inserts / threads) * thread;
        let mut draw = || match options.ratios.op(engine.canonical()) {
            Drawn::Insert => {
                next += 1;
                (Drawn::Insert, key_of(next - 1))
            }
            other => (other, key_of(ids.draw(&mut engine))),
        };
        (0..share).map(|_| draw()).collect()
    };
    (0..threads).map(of_thread).collect()
}

/// Loads ids 1 to `records` with one thread; then each thread does what was drawn for it.
pub(super) fn mixed(options: &Options, subject: &dyn Subject) -> Result<Mixed, Error> {
    let load = Plan {
        threads: 1,
        count: if options.skip_load {
            0
        } else {
            options.records
        },
        timed_one_in: 0,
        sampling: None,
    };
    let loaded = phase(subject, load, |session, n| {
        Ok(usize::from(session.insert(key_of(n + 1), n)?))
    })?;
    if loaded.ends[NOT_DONE] > 0 {
        let there = loaded.ends[NOT_DONE];
        return Err(Error::Failed(format!(
            "{there} keys of the load were there"
        )));
    }
    let drawn = drawn(options);
    let share = options.operations.div_ceil(u64::from(options.threads));
    let plan = Plan {
        threads: options.threads,
        count: options.operations,
        timed_one_in: options.timed_one_in,
        sampling: Some(Duration::from_millis(u64::from(options.sampling_ms))),
    };
    let run = phase(subject, plan, |session, n| {
        let (kind, key) = drawn[(n / share) as usize][(n % share) as usize];
        let done = match kind {
            Drawn::Read => session.get(key)?.is_some(),
            Drawn::Insert => session.insert(key, n)?,
            Drawn::Update => session.update(key, n)?,
            Drawn::Remove => session.remove(key)?,
        };
        Ok(kind.end(done))
    })?;
    Ok(Mixed {
        load: loaded.took,
        run,
    })
}

/// PiBench's mix as figures.
pub(super) fn mix(options: &Options, contender: &Contender) -> Result<Vec<Figure>, Error> {
    let subject = contender.make(options, options.records + options.operations)?;
    let mixed = mixed(options, &*subject)?;
    let succeeded = mixed.succeeded() as f64 / options.operations as f64;
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
