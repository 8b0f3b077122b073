//! Every number of the model: its value, its unit, where it is from, and what it was fitted to.
//!
//! Two kinds: *published* numbers were read somewhere and used as they are; *calibrated* ones were
//! chosen so that a named row of `farbank check model` comes out right. Calibration rows are rows of
//! one DIMM with 64- and 256-byte accesses, and the XPBuffer curve; nothing else was looked at.
//!
//! OptaneStudy is the data of Yang et al., "An Empirical Guide to the Behavior and Use of Scalable
//! Persistent Memory" (FAST '20), github.com/NVSL/OptaneStudy: two Xeon 8260, 256 GB DIMMs.

/// Where a constant is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConstantSource {
    /// Used as it was read.
    Published,
    /// Fitted to a row of one DIMM, or to the XPBuffer curve.
    Calibrated,
}

/// A number of the model.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// What it is.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// What it is counted in.
    pub unit: &'static str,
    /// Whether it was read or fitted.
    pub origin: ConstantSource,
    /// Where it was read, or the row it was fitted to.
    pub source: &'static str,
}

/// Version of the model: changes with its equations or constants, and is printed with every figure.
pub const VERSION: u32 = 2;

macro_rules! constants {
    ($($(#[$doc:meta])* $id:ident = $value:expr, $unit:expr, $origin:ident, $source:expr;)*) => {
        $($(#[$doc])* pub const $id: Constant = Constant {
            name: stringify!($id),
            value: $value,
            unit: $unit,
            origin: ConstantSource::$origin,
            source: $source,
        };)*
        /// All of them, to be printed.
        pub const ALL: &[Constant] = &[$($id),*];
    };
}

constants! {
    /// Media time to read one XPLine.
    READ_XPLINE = 38.5, "ns", Calibrated, "one DIMM, random load: 64 B 1.675, 256 B 6.50 GB/s";
    /// Media time to write one XPLine of a 256 GB DIMM.
    WRITE_XPLINE_256GB = 115.6, "ns", Calibrated, "one DIMM, random ntstore: 64 B 0.555, 256 B 2.207 GB/s";
    /// Media time to write one XPLine of a 128 GB DIMM.
    WRITE_XPLINE_128GB = 142.0, "ns", Published, "Intel's specification, 1.85 GB/s";
    /// What a line fetched in order to be written costs the media besides the write, which hides the rest.
    FILL_LINE = 8.0, "ns", Calibrated, "one DIMM, random store+clwb: 64 B 0.513, 256 B 1.755 GB/s";
    /// Load of a line that nothing on the way has.
    LOAD_RANDOM = 305.0, "ns", Published, "OptaneStudy graphs/02";
    /// Load of a line in an XPLine the DIMM has just read.
    LOAD_BUFFERED = 169.4, "ns", Published, "OptaneStudy graphs/02, sequential";
    /// Load of a line of DRAM.
    LOAD_DRAM = 101.5, "ns", Published, "OptaneStudy graphs/02";
    /// Load of a line in the last-level cache.
    LOAD_CACHED = 20.0, "ns", Published, "Intel: Cascade Lake, L3 hit";
    /// From a flush's issue until its line is in the persistence domain.
    FLUSH_ACCEPTED = 45.0, "ns", Published, "OptaneStudy graphs/02: store+clwb+sfence 62.3, less the fence";
    /// From a non-temporal store's issue until its line is in the persistence domain.
    AROUND_ACCEPTED = 73.0, "ns", Published, "OptaneStudy graphs/02: ntstore+sfence 90.4, less the fence";
    /// What a fence takes besides waiting.
    FENCE = 17.0, "ns", Published, "OptaneStudy graphs/02: 62.3 less 45";
    /// Issue of one non-temporal line after another.
    AROUND_ISSUE = 22.6, "ns", Published, "OptaneStudy graphs/12, latency: (1550.6 - 124.7) / 63";
    /// Issue of one store and flush after another.
    FLUSH_ISSUE = 26.3, "ns", Published, "OptaneStudy graphs/12, latency: (1774.2 - 116.4) / 63";
    /// Issue of a load, and a store to a line that is cached.
    ISSUE = 1.5, "ns", Published, "a few instructions";
    /// Lines one worker loads at once.
    LOADS_IN_FLIGHT = 9.0, "lines", Calibrated, "one DIMM, 256 B load, 1 thread: 2.92 GB/s";
    /// Lines one worker fetches in order to write them, at once.
    FILLS_IN_FLIGHT = 6.0, "lines", Calibrated, "one DIMM, 256 B store+clwb, 1 thread: 1.44 GB/s";
    /// Lines one worker has on their way to the persistence domain at once.
    WRITES_IN_FLIGHT = 12.0, "lines", Published, "Intel: line fill buffers of a Cascade Lake core";
    /// Lines for one DIMM in the persistence domain that are not in its XPBuffer yet.
    WRITE_QUEUE = 16.0, "lines", Calibrated, "one DIMM, 256 B ntstore, 1 to 24 threads";
    /// Lines that wait for that queue in order. Those beyond are admitted in no order.
    WRITE_ORDERED = 44.0, "lines", Calibrated, "one DIMM, 256 B ntstore, 1 to 24 threads";
    /// XPLines a DIMM keeps for combining.
    XPBUFFER = 69.0, "XPLines", Calibrated, "XPBuffer curve";
    /// XPLines a DIMM keeps because they were read.
    READ_BUFFER = 64.0, "XPLines", Published, "Xiang et al., EuroSys '22: 16 KiB, first in, first out";
    /// XPLine writes a DIMM accepts ahead of its media.
    WRITE_SLACK = 8.0, "XPLines", Published, "the persistence domain holds some 2 KiB a DIMM";
    /// Media writes for each XPLine written: wear levelling and the like.
    MEDIA_OVERHEAD = 1.036, "writes", Calibrated, "XPBuffer curve, regions of 2 to 16 KiB";
    /// Bytes after which the next DIMM follows.
    INTERLEAVE = 4096.0, "bytes", Published, "Intel: App Direct, interleaved";
    /// What a load from the other socket takes, as a multiple.
    REMOTE_LOAD = 1.20, "times", Published, "Izraelevitz et al. 2019";
    /// What a write to the other socket takes, as a multiple.
    REMOTE_WRITE = 1.68, "times", Published, "Izraelevitz et al. 2019";
    /// The link between sockets, a line, while it carries only loads.
    LINK_LOAD = 4.8, "ns", Published, "OptaneStudy graphs/17, cell R, remote, 4 threads: 13.3 GB/s";
    /// The link between sockets, a line, while it carries only writes.
    LINK_WRITE = 10.8, "ns", Published, "OptaneStudy graphs/17, cell W, remote, 4 threads: 5.90 GB/s";
    /// The link between sockets, a line, while it carries both.
    LINK_MIXED = 29.2, "ns", Published, "OptaneStudy graphs/17, cell R:W 3:1, remote, 4 threads: 2.19 GB/s";
    /// An uncontended lock, taken.
    LOCK = 20.0, "ns", Published, "one atomic exchange of a cached line";
    /// A lock handed to a worker that waits for it.
    LOCK_HAND_OFF = 90.0, "ns", Published, "one line from core to core, 60 to 120";
    /// Times a cell of the media can be written.
    ENDURANCE = 1.4e6, "writes", Published, "Intel: 360 PB written in five years on 256 GB";
    /// Window of the time series.
    WINDOW = 15.0, "ms", Published, "what the pcm tool was sampled at in the hash index study";
}

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// Bytes of an XPLine, what the media reads and writes.
pub const XPLINE_BYTES: u64 = 256;
