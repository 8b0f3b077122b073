//! The real media: [`Mapped`] (DAX and DRAM) and [`File`].

pub mod cpu;
pub mod file;
pub mod mapped;
mod window;

pub use mapped::Mapped;

#[cfg(not(all(target_arch = "x86_64", target_endian = "little", target_os = "linux")))]
compile_error!(
    "Farbank's media are written for x86-64 Linux: no other processor's order of stores \
                and flushes has been thought through"
);
