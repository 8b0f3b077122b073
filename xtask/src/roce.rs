//! The suite `tree-roce`: the tree over RDMA verbs. A virtual machine has the kernel's RDMA in software (soft-RoCE, module rdma_rxe),
//! which libfabric's provider `verbs;ofi_rxm` uses as it uses a network card.
//!
//! `guest/roce.sh` is the program in the machine.

use std::path::Path;

use crate::RunSize;
use crate::guest::Guest;
use crate::libfabric;
use crate::run::{install, root};

/// Time limit of the machine in seconds.
const LIMIT_S: u64 = 400;
const LIMIT_OF_GATE_S: u64 = 3_600;

/// Files for the machine, and the packages that have them.
const FILES: [(&str, &str); 4] = [
    ("/usr/lib/x86_64-linux-gnu/libfabric.so.1", "libfabric1"),
    (
        "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
        "ibverbs-providers",
    ),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/bin/rdma", "iproute2"),
];

/// Loads and reads a tree in the machine, and kills and pauses the processes of another one.
pub(crate) fn run(size: RunSize) -> Result<(), String> {
    let missing: Vec<&str> = FILES
        .iter()
        .filter(|(file, _)| !Path::new(file).exists())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let (cycles, limit_s) = match size {
        RunSize::Suite => ("10", LIMIT_S),
        RunSize::Gate => ("100", LIMIT_OF_GATE_S),
    };
    let guest = Guest::new(&[libfabric::build()?], &FILES.map(|(file, _)| file))?;
    let script = root().join("guest/roce.sh").display().to_string();
    let options = ["-f", "none", "-m", "1536"];
    let boot = guest.boot(&options, limit_s, &[&script, cycles])?;
    match boot.fine && boot.lines.iter().any(|line| line == "ROCE ok") {
        true => Ok(()),
        false => Err("roce.sh failed; its output is above".into()),
    }
}
