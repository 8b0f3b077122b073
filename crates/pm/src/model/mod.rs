//! The model.
pub mod constants;
mod buffer;
mod cache;
pub mod check;
mod count;
mod dimm;
mod machine;
mod medium;
mod memory;
pub mod micro;
pub mod published;
mod step;

pub use count::{ByCategory, Counts, DimmCounts, Hotspot, WearFigures};
pub use machine::{Machine, Outcome};
pub use medium::{Modelled, Trace};
pub use memory::Config;
pub use step::{Act, Category, Spending, Step};
