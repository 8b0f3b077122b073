//! The real media: [`Mapped`] (DAX and DRAM) and [`File`].

pub mod file;
pub mod mapped;



