//! Access counts, DIMM counts, wear and hotspots.

use std::ops::{AddAssign, Index, IndexMut};

use super::constants::{ENDURANCE, LINE_BYTES, XPLINE_BYTES};
use super::step::Category;

/// Counts of the accesses of workers, and of the resulting media accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessCounts {
    /// Lines loaded or prefetched.
    pub loads: u64,
    /// Loads that missed the cache.
    pub cache_misses: u64,
    /// Lines stored to through the cache, counted for each call.
    pub stores: u64,
    /// Lines fetched because of a store.
    pub fills: u64,
    /// Flushes of a line.
    pub flushes: u64,
    /// Flushes of a line that was not dirty.
    pub flushes_clean: u64,
    /// Flushes of a line that the same worker had flushed since its last fence.
    pub flushes_again: u64,
    /// Whole lines stored around the cache.
    pub around: u64,
    /// Fences.
    pub fences: u64,
    /// Fences without a flush or a store around the cache before them.
    pub fences_idle: u64,
    /// Written lines that arrived at the memory controller.
    pub lines_written: u64,
    /// XPLines that the media read for loads and fetches.
    pub media_reads: u64,
    /// XPLines that the media read to complete partially written ones.
    pub media_reads_to_write: u64,
    /// XPLines that the media wrote.
    pub media_writes: u64,
    /// Lines written into an XPLine that was already in the XPBuffer.
    pub combined: u64,
    /// XPLines written to the media with fewer than four new lines.
    pub partial: u64,
}

macro_rules! each_count {
    ($do:ident!) => {
        $do!(
            loads,
            cache_misses,
            stores,
            fills,
            flushes,
            flushes_clean,
            flushes_again,
            around,
            fences,
            fences_idle,
            lines_written,
            media_reads,
            media_reads_to_write,
            media_writes,
            combined,
            partial
        )
    };
}

impl AddAssign for AccessCounts {
    fn add_assign(&mut self, other: AccessCounts) {
        macro_rules! add {
            ($($field:ident),*) => { $(self.$field += other.$field;)* };
        }
        each_count!(add!);
    }
}

impl AccessCounts {
    /// Returns each count with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 16] {
        macro_rules! list {
            ($($field:ident),*) => { [$((stringify!($field), self.$field)),*] };
        }
        each_count!(list!)
    }

    /// Returns the effective write ratio (EWR): written bytes that arrived, per byte that the media wrote. 1 if the
    /// media wrote none.
    #[must_use]
    pub fn write_efficiency(&self) -> f64 {
        ratio(
            self.lines_written * LINE_BYTES,
            self.media_writes * XPLINE_BYTES,
        )
    }

    /// Returns the bytes that the media wrote, per byte of the `bytes` that the application wrote.
    #[must_use]
    pub fn write_amplification(&self, bytes: u64) -> f64 {
        ratio(self.media_writes * XPLINE_BYTES, bytes)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

/// The [`AccessCounts`] of each category.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CountsByCategory([AccessCounts; Category::ALL.len()]);

impl Index<Category> for CountsByCategory {
    type Output = AccessCounts;

    fn index(&self, category: Category) -> &AccessCounts {
        &self.0[category as usize]
    }
}

impl IndexMut<Category> for CountsByCategory {
    fn index_mut(&mut self, category: Category) -> &mut AccessCounts {
        &mut self.0[category as usize]
    }
}

impl CountsByCategory {
    /// Returns the sum over all categories.
    #[must_use]
    pub fn total(&self) -> AccessCounts {
        let mut total = AccessCounts::default();
        self.0.iter().for_each(|counts| total += *counts);
        total
    }
}

/// Counts of one DIMM.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DimmCounts {
    /// XPLines read.
    pub reads: u64,
    /// XPLines written.
    pub writes: u64,
    /// Time for which its media was busy, in picoseconds.
    pub busy_ps: u64,
    /// Reads and writes of each window of virtual time.
    pub series: Vec<[u32; 2]>,
}

/// Returns the largest value divided by the mean; 1 if the sum is 0.
#[must_use]
pub(super) fn imbalance(of: impl Iterator<Item = u64> + Clone) -> f64 {
    let (most, sum, n) = of.fold((0, 0, 0), |(most, sum, n), x| (x.max(most), sum + x, n + 1));
    ratio(most * n, sum)
}

/// Number of media writes of each XPLine.
#[derive(Clone, Debug, Default)]
pub(super) struct WearMap(Vec<u32>);

/// Summary of the media's wear.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WearFigures {
    /// XPLines written at least once.
    pub xplines: u64,
    /// Writes of the XPLine that was written most.
    pub max: u32,
    /// Mean number of writes of the written XPLines.
    pub mean: f64,
    /// Years until the XPLine that was written most is worn out at this rate, without wear levelling.
    pub years: f64,
}

impl WearMap {
    pub(super) fn one_more(&mut self, xpline: u32) {
        let at = xpline as usize;
        if at >= self.0.len() {
            self.0.resize((at + 1).next_power_of_two(), 0);
        }
        self.0[at] = self.0[at].saturating_add(1);
    }

    /// Returns the summary after `elapsed_ps` of virtual time.
    pub(super) fn figures(&self, elapsed_ps: u64) -> WearFigures {
        const PS_A_YEAR: f64 = 365.25 * 86_400.0 * 1e12;
        let written = self.0.iter().filter(|writes| **writes > 0);
        let (xplines, sum, max) = written.fold((0u64, 0u64, 0), |(n, sum, max), writes| {
            (n + 1, sum + u64::from(*writes), (*writes).max(max))
        });
        let years = ENDURANCE.value / f64::from(max.max(1)) * elapsed_ps as f64 / PS_A_YEAR;
        let mean = sum as f64 / xplines.max(1) as f64;
        WearFigures {
            xplines,
            max,
            mean,
            years,
        }
    }
}

/// Number of writes of each line, and the owner of most of them.
#[derive(Clone, Debug, Default)]
pub(super) struct HotMap(Vec<HotLine>);

#[derive(Clone, Copy, Debug, Default)]
struct HotLine {
    writes: u32,
    /// The candidate of the majority vote (Boyer and Moore): an owner with more than half of the writes is this one.
    owner: u32,
    /// The lead of the candidate.
    lead: u32,
}

/// A line or a page that is written often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hotspot {
    /// Offset of its first byte.
    pub at: crate::Off,
    /// Number of line writes to it that arrived at the memory controller.
    pub writes: u64,
    /// Number of the source line ([`Trace::place`](super::Trace::place)) with more than half of the writes, if any.
    pub place: u16,
    /// Category of these writes.
    pub category: Category,
}

impl HotMap {
    pub(super) fn one_more(&mut self, line: u32, owner: u32) {
        let at = line as usize;
        if at >= self.0.len() {
            self.0
                .resize((at + 1).next_power_of_two(), HotLine::default());
        }
        let hot = &mut self.0[at];
        hot.writes = hot.writes.saturating_add(1);
        vote(&mut hot.owner, &mut hot.lead, owner, 1);
    }

    /// Returns the `n` most written aligned runs of `lines` lines.
    pub(super) fn hottest(&self, lines: usize, n: usize) -> Vec<Hotspot> {
        let mut all: Vec<Hotspot> = (self.0.chunks(lines).enumerate())
            .filter_map(|(number, run)| spot(number * lines, run))
            .collect();
        all.sort_unstable_by_key(|spot| (std::cmp::Reverse(spot.writes), spot.at));
        all.truncate(n);
        all
    }
}

fn spot(first: usize, run: &[HotLine]) -> Option<Hotspot> {
    let writes: u64 = run.iter().map(|line| u64::from(line.writes)).sum();
    let (mut owner, mut lead) = (0, 0);
    for line in run.iter().filter(|line| line.lead > 0) {
        vote(&mut owner, &mut lead, line.owner, line.lead);
    }
    (writes > 0).then(|| Hotspot {
        at: crate::Off(first as u64 * LINE_BYTES),
        writes,
        place: (owner >> 8) as u16,
        category: Category::ALL[(owner & 0xff) as usize],
    })
}

fn vote(owner: &mut u32, lead: &mut u32, whose: u32, votes: u32) {
    if *owner == whose {
        *lead = lead.saturating_add(votes);
    } else if *lead >= votes {
        *lead -= votes;
    } else {
        *lead = votes - *lead;
        *owner = whose;
    }
}
