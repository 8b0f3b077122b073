//! Published measurements on persistent memory, as data.
//!
//! Sources: OptaneStudy (commit 61d0b5e8), with two Xeon 8260 and 2 x 6 x 256 GB DIMMs of the first
//! generation, in GB/s; and figure 14 of the study of seven indexes. In graphs/04 for six DIMMs the columns
//! ntstore and clwb are swapped, as data/bandwidth.csv shows; here they are corrected.

use super::micro::{AccessKind, AccessOrder, Microbench};

/// The use of a published figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FigureUse {
    /// A constant was fitted to it.
    Calibrated,
    /// No constant was fitted to it. The model's relative error must be within this bound, if one is given.
    HeldOut(Option<f64>),
}

/// A measured bandwidth.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// The microbenchmark.
    pub micro: Microbench,
    /// Measured bandwidth, in GB/s.
    pub gb_s: f64,
    /// Use of the figure.
    pub how: FigureUse,
    /// The file of the publication.
    pub source: &'static str,
}

/// Bound for six DIMMs, random and sequential, at the best number of threads.
const SIX_DIMMS: Option<f64> = Some(0.15);
/// Bound for saturation with 24 threads.
const SATURATION: Option<f64> = Some(0.20);

const THREADS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24];

fn rows(
    of: impl Iterator<Item = (Microbench, f64)>,
    how: FigureUse,
    source: &'static str,
) -> impl Iterator<Item = Bandwidth> {
    of.map(move |(micro, gb_s)| Bandwidth {
        micro,
        gb_s,
        how,
        source,
    })
}

fn micro(
    access: AccessKind,
    order: AccessOrder,
    bytes: u32,
    dimms: u32,
    threads: u32,
) -> Microbench {
    Microbench {
        access,
        order,
        bytes,
        dimms,
        threads,
    }
}

fn by_threads<'a>(
    access: AccessKind,
    order: AccessOrder,
    bytes: u32,
    dimms: u32,
    found: &'a [(u32, f64)],
) -> impl Iterator<Item = (Microbench, f64)> + 'a {
    let at = move |threads| micro(access, order, bytes, dimms, threads);
    found
        .iter()
        .map(move |&(threads, gb_s)| (at(threads), gb_s))
}

fn by_bytes<'a>(
    access: AccessKind,
    order: AccessOrder,
    dimms: u32,
    threads: u32,
    found: &'a [(u32, f64)],
) -> impl Iterator<Item = (Microbench, f64)> + 'a {
    let at = move |bytes| micro(access, order, bytes, dimms, threads);
    found.iter().map(move |&(bytes, gb_s)| (at(bytes), gb_s))
}

/// Returns all bandwidths that are compared.
#[must_use]
pub fn bandwidths() -> Vec<Bandwidth> {
    let mut all = Vec::new();
    one_dimm(&mut all);
    six_dimms(&mut all);
    six_dimms_by_threads(&mut all);
    all
}

fn one_dimm(all: &mut Vec<Bandwidth>) {
    use AccessKind::{Around, Flush, Load};
    use AccessOrder::{Random, Sequential};
    const SIZES: &str = "graphs/05 ni";
    const CURVE: &str = "graphs/04 ni";
    for (access, threads, fitted, others) in [
        (
            Load,
            4,
            [(64, 1.675), (256, 6.505)],
            [(128, 3.344), (4096, 6.559)],
        ),
        (
            Around,
            1,
            [(64, 0.555), (256, 2.207)],
            [(128, 1.098), (4096, 2.231)],
        ),
        (
            Flush,
            2,
            [(64, 0.513), (256, 1.755)],
            [(128, 0.927), (4096, 1.774)],
        ),
    ] {
        all.extend(rows(
            by_bytes(access, Random, 1, threads, &fitted),
            FigureUse::Calibrated,
            SIZES,
        ));
        let held = FigureUse::HeldOut(None);
        all.extend(rows(
            by_bytes(access, Random, 1, threads, &others),
            held,
            SIZES,
        ));
    }
    let curves: [(AccessKind, [f64; 10]); 3] = [
        (
            Load,
            [2.92, 5.66, 6.45, 6.52, 6.50, 6.46, 5.91, 4.73, 4.10, 3.89],
        ),
        (
            Around,
            [2.22, 2.21, 2.21, 2.20, 1.96, 1.53, 1.12, 0.94, 0.86, 0.80],
        ),
        (
            Flush,
            [1.44, 1.79, 1.79, 1.71, 1.55, 1.40, 1.08, 0.88, 0.85, 0.82],
        ),
    ];
    for (access, found) in curves {
        let found: Vec<(u32, f64)> = THREADS.into_iter().zip(found).collect();
        // Of the other curves, only the first point was used for fitting.
        let fitted = if access == Around { found.len() } else { 1 };
        let (fitted, others) = found.split_at(fitted);
        let curve = |found| by_threads(access, Sequential, 256, 1, found);
        all.extend(rows(curve(fitted), FigureUse::Calibrated, CURVE));
        all.extend(rows(curve(others), FigureUse::HeldOut(None), CURVE));
    }
}

fn six_dimms(all: &mut Vec<Bandwidth>) {
    use AccessKind::{Around, Flush, Load, Store};
    use AccessOrder::{Random, Sequential};
    const DATA: &str = "data/bandwidth";
    const SIZES: &str = "graphs/05";
    let bound = FigureUse::HeldOut(SIX_DIMMS);
    let free = FigureUse::HeldOut(None);
    for (access, threads, found) in [
        (Load, 16, [(64, 9.983), (128, 19.456), (256, 37.325)]),
        (Around, 4, [(64, 3.187), (128, 5.973), (256, 12.467)]),
    ] {
        all.extend(rows(
            by_bytes(access, Random, 6, threads, &found),
            bound,
            DATA,
        ));
    }
    let sequential = [(Load, 16, 37.93), (Around, 4, 12.65), (Flush, 12, 10.06)];
    for (access, threads, gb_s) in sequential {
        let found = [(2 << 20, gb_s)];
        all.extend(rows(
            by_bytes(access, Sequential, 6, threads, &found),
            bound,
            SIZES,
        ));
    }
    for (access, threads, gb_s) in [(Load, 16, 25.98), (Around, 4, 9.438), (Flush, 12, 7.688)] {
        let found = [(4096, gb_s)];
        all.extend(rows(
            by_bytes(access, Random, 6, threads, &found),
            free,
            SIZES,
        ));
    }
    let plain = [(64, 2.62)];
    all.extend(rows(by_bytes(Store, Random, 6, 24, &plain), free, DATA));
}

fn six_dimms_by_threads(all: &mut Vec<Bandwidth>) {
    use AccessKind::{Around, Flush, Load};
    use AccessOrder::{Random, Sequential};
    const DATA: &str = "data/bandwidth";
    const CURVE: &str = "graphs/04";
    let free = FigureUse::HeldOut(None);
    for (bytes, found, full) in [
        (
            64,
            [(1, 1.088), (2, 1.920), (4, 2.662), (8, 2.970), (16, 2.867)],
            [(24, 3.072)],
        ),
        (
            256,
            [(1, 1.115), (2, 2.206), (4, 4.397), (8, 8.516), (16, 9.165)],
            [(24, 8.243)],
        ),
    ] {
        all.extend(rows(
            by_threads(Flush, Random, bytes, 6, &found),
            free,
            DATA,
        ));
        let bound = FigureUse::HeldOut(SATURATION);
        all.extend(rows(
            by_threads(Flush, Random, bytes, 6, &full),
            bound,
            DATA,
        ));
    }
    let curves: [(AccessKind, [f64; 10]); 3] = [
        (
            Load,
            [
                2.88, 5.75, 8.94, 11.63, 16.63, 21.13, 28.75, 34.88, 37.19, 37.56,
            ],
        ),
        (
            Around,
            [
                4.13, 8.19, 11.81, 12.50, 12.31, 12.00, 10.69, 10.00, 8.75, 7.50,
            ],
        ),
        (
            Flush,
            [1.42, 2.85, 4.33, 5.75, 8.50, 9.98, 9.50, 8.67, 7.92, 7.50],
        ),
    ];
    for (access, found) in curves {
        let found: Vec<(u32, f64)> = THREADS.into_iter().zip(found).collect();
        all.extend(rows(
            by_threads(access, Sequential, 256, 6, &found),
            free,
            CURVE,
        ));
    }
}

/// Bytes of a region, and media writes per XPLine of it; each round writes first the first halves of all XPLines, then
/// the second halves (graphs/09). Regions below 2 KiB are left out: for them the study's counter shows less than one
/// write.
pub const XPBUFFER_CURVE: [(u64, f64); 33] = [
    (2048, 1.0365),
    (4096, 1.0344),
    (8192, 1.0360),
    (16384, 1.0363),
    (18432, 1.0388),
    (20480, 1.3585),
    (22528, 1.5034),
    (24576, 1.6084),
    (26624, 1.6815),
    (28672, 1.7362),
    (30720, 1.7863),
    (32768, 1.8196),
    (34816, 1.8568),
    (36864, 1.8767),
    (38912, 1.8936),
    (40960, 1.9179),
    (43008, 1.9365),
    (45056, 1.9546),
    (47104, 1.9702),
    (49152, 1.9842),
    (51200, 1.9966),
    (53248, 2.0075),
    (55296, 2.0152),
    (57344, 2.0225),
    (59392, 2.0287),
    (61440, 2.0340),
    (63488, 2.0403),
    (65536, 2.0430),
    (131_072, 2.0761),
    (262_144, 2.0762),
    (524_288, 2.0764),
    (1_048_576, 2.0750),
    (2_097_152, 2.0743),
];

/// Latencies of a single access, in nanoseconds (graphs/02).
pub const LATENCIES: [(&str, f64); 4] = [
    ("load, random", 305.0),
    ("load, sequential", 169.4),
    ("ntstore and fence", 90.4),
    ("store, clwb and fence", 62.3),
];

/// Bandwidths of four threads (graphs/17): parts loaded, parts written, GB/s local, GB/s from the other
/// socket, and the use of the remote figure.
pub const LINK: [(u32, u32, f64, f64, FigureUse); 6] = [
    (1, 0, 14.62, 13.31, FigureUse::Calibrated),
    (4, 1, 13.84, 4.773, FigureUse::HeldOut(None)),
    (3, 1, 12.75, 2.190, FigureUse::Calibrated),
    (2, 1, 10.41, 1.743, FigureUse::HeldOut(None)),
    (1, 1, 6.899, 1.951, FigureUse::HeldOut(None)),
    (0, 1, 13.51, 5.901, FigureUse::Calibrated),
];

/// The memory accesses of an insert into one of the study's indexes.
#[derive(Clone, Copy, Debug)]
pub struct InsertProfile {
    /// The index.
    pub name: &'static str,
    /// Mean number of lines flushed, from the study's figure 11.
    pub lines: f64,
    /// Mean number of XPLines read by the search.
    pub reads: f64,
    /// CPU time, in nanoseconds.
    pub compute_ns: u32,
    /// Throughput of 32 local threads, divided by that of 32 threads on the other socket (figure 14).
    pub loss: f64,
}

/// Indexes whose inserts saturate the memory. The study's other indexes wait for locks and resizes instead.
pub const NUMA_LOSSES: [InsertProfile; 2] = [
    InsertProfile {
        name: "CCEH",
        lines: 2.34,
        reads: 1.5,
        compute_ns: 200,
        loss: 2.3,
    },
    InsertProfile {
        name: "Dash",
        lines: 3.7,
        reads: 2.0,
        compute_ns: 200,
        loss: 2.6,
    },
];
/// Bound of the relative error for [`NUMA_LOSSES`].
pub const NUMA_BOUND: f64 = 0.20;
/// Bound of the root mean square error for [`XPBUFFER_CURVE`].
pub const CURVE_BOUND: f64 = 0.03;

/// Bandwidths of random loads and writes of 64 bytes by 16 threads on six DIMMs (graphs/06): threads that
/// load, threads that write, GB/s.
pub const MIXED: [(u32, u32, f64); 5] = [
    (0, 16, 3.893),
    (4, 12, 5.706),
    (8, 8, 7.740),
    (12, 4, 8.299),
    (16, 0, 10.715),
];
