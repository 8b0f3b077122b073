//! The constants of the model: value, unit, and source.
//!
//! There are two kinds. *Published* values are used as published. *Calibrated* values were fitted to a
//! given row of `farbank check model`. Only rows of one DIMM with 64- and 256-byte accesses, and the
//! XPBuffer curve, were used for calibration.
//!
//! OptaneStudy is the data of Yang et al., "An Empirical Guide to the Behavior and Use of Scalable
//! Persistent Memory" (FAST '20), github.com/NVSL/OptaneStudy: two Xeon 8260, 256 GB DIMMs.

/// The kind of source of a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConstantSource {
    /// Used as published.
    Published,
    /// Fitted to a row of one DIMM, or to the XPBuffer curve.
    Calibrated,
}

/// A constant of the model.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// Whether the value is published or calibrated.
    pub origin: ConstantSource,
    /// The publication, or the row to which the value was fitted.
    pub source: &'static str,
}

/// Version of the model. It changes with the equations and constants, and is printed with every figure.
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
        /// All constants, for printing.
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
    /// Media time of a line that is fetched for a store, besides the later write, which hides most of the read.
    FILL_LINE = 8.0, "ns", Calibrated, "one DIMM, random store+clwb: 64 B 0.513, 256 B 1.755 GB/s";
    /// Load of a line that no cache or buffer holds.
    LOAD_RANDOM = 305.0, "ns", Published, "OptaneStudy graphs/02";
    /// Load of a line in an XPLine that the DIMM has just read.
    LOAD_BUFFERED = 169.4, "ns", Published, "OptaneStudy graphs/02, sequential";
    /// Load of a line of DRAM.
    LOAD_DRAM = 101.5, "ns", Published, "OptaneStudy graphs/02";
    /// Load of a line in the last-level cache.
    LOAD_CACHED = 20.0, "ns", Published, "Intel: Cascade Lake, L3 hit";
    /// Time from the issue of a flush until its line is in the persistence domain.
    FLUSH_ACCEPTED = 45.0, "ns", Published, "OptaneStudy graphs/02: store+clwb+sfence 62.3, less the fence";
    /// Time from the issue of a non-temporal store until its line is in the persistence domain.
    AROUND_ACCEPTED = 73.0, "ns", Published, "OptaneStudy graphs/02: ntstore+sfence 90.4, less the fence";
    /// Time of a fence besides the wait for earlier lines.
    FENCE = 17.0, "ns", Published, "OptaneStudy graphs/02: 62.3 less 45";
    /// Interval between non-temporal stores of one worker.
    AROUND_ISSUE = 22.6, "ns", Published, "OptaneStudy graphs/12, latency: (1550.6 - 124.7) / 63";
    /// Interval between flushes of one worker.
    FLUSH_ISSUE = 26.3, "ns", Published, "OptaneStudy graphs/12, latency: (1774.2 - 116.4) / 63";
    /// Issue of a load, or of a store to a cached line.
    ISSUE = 1.5, "ns", Published, "a few instructions";
    /// Lines that one worker loads concurrently.
    LOADS_IN_FLIGHT = 9.0, "lines", Calibrated, "one DIMM, 256 B load, 1 thread: 2.92 GB/s";
    /// Lines that one worker fetches concurrently for stores.
    FILLS_IN_FLIGHT = 6.0, "lines", Calibrated, "one DIMM, 256 B store+clwb, 1 thread: 1.44 GB/s";
    /// Lines of one worker that are concurrently on their way to the persistence domain.
    WRITES_IN_FLIGHT = 12.0, "lines", Published, "Intel: line fill buffers of a Cascade Lake core";
    /// Capacity of a DIMM's write queue: lines in the persistence domain that are not in its XPBuffer yet.
    WRITE_QUEUE = 16.0, "lines", Calibrated, "one DIMM, 256 B ntstore, 1 to 24 threads";
    /// Lines that wait for the write queue in order. Lines beyond these are admitted in random order.
    WRITE_ORDERED = 44.0, "lines", Calibrated, "one DIMM, 256 B ntstore, 1 to 24 threads";
    /// XPLines in a DIMM's XPBuffer, which combines writes.
    XPBUFFER = 69.0, "XPLines", Calibrated, "XPBuffer curve";
    /// XPLines in a DIMM's read buffer.
    READ_BUFFER = 64.0, "XPLines", Published, "Xiang et al., EuroSys '22: 16 KiB, first in, first out";
    /// XPLine writes that a DIMM accepts ahead of its media.
    WRITE_SLACK = 8.0, "XPLines", Published, "the persistence domain holds some 2 KiB a DIMM";
    /// Media writes for each XPLine written, for example because of wear levelling.
    MEDIA_OVERHEAD = 1.036, "writes", Calibrated, "XPBuffer curve, regions of 2 to 16 KiB";
    /// Bytes of consecutive addresses on one DIMM.
    INTERLEAVE = 4096.0, "bytes", Published, "Intel: App Direct, interleaved";
    /// Time of a load from the other socket, as a multiple of a local one.
    REMOTE_LOAD = 1.20, "times", Published, "Izraelevitz et al. 2019";
    /// Time of a write to the other socket, as a multiple of a local one.
    REMOTE_WRITE = 1.68, "times", Published, "Izraelevitz et al. 2019";
    /// Time per line of the link between sockets while it carries only loads.
    LINK_LOAD = 4.8, "ns", Published, "OptaneStudy graphs/17, cell R, remote, 4 threads: 13.3 GB/s";
    /// Time per line of the link between sockets while it carries only writes.
    LINK_WRITE = 10.8, "ns", Published, "OptaneStudy graphs/17, cell W, remote, 4 threads: 5.90 GB/s";
    /// Time per line of the link between sockets while it carries both.
    LINK_MIXED = 29.2, "ns", Published, "OptaneStudy graphs/17, cell R:W 3:1, remote, 4 threads: 2.19 GB/s";
    /// Time to take an uncontended lock.
    LOCK = 20.0, "ns", Published, "one atomic exchange of a cached line";
    /// Time to hand a lock over to a worker that waits for it.
    LOCK_HAND_OFF = 90.0, "ns", Published, "one line from core to core, 60 to 120";
    /// Number of times that a media cell can be written.
    ENDURANCE = 1.4e6, "writes", Published, "Intel: 360 PB written in five years on 256 GB";
    /// Window of the time series.
    WINDOW = 15.0, "ms", Published, "sampling interval of the pcm tool in the hash index study";
}

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// Bytes of an XPLine, the unit of media reads and writes.
pub const XPLINE_BYTES: u64 = 256;
