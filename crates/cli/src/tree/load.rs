//! `farbank tree load`: sets the values of the keys in a file or on standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use farbank_tree::{Cluster, KeyValue, VALUE_BYTES_MAX};

use super::{ClusterArgs, EXAMPLES, failed, print_json};
use crate::common::Failure;

/// Bytes of entries that are sent at once.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum bytes of a line: a key, a tab and a value.
const LINE_BYTES_MAX: usize = 1024 + 1 + VALUE_BYTES_MAX;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// File with a key, a tab and a value in each line. "-" is standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
}

/// Reads a value from standard input, to its end.
pub(super) fn read_value() -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let limit = VALUE_BYTES_MAX as u64 + 1;
    let read = io::stdin().lock().take(limit).read_to_end(&mut value);
    read.map_err(|error| Failure::failed(format!("standard input: {error}")))?;
    match value.len() > VALUE_BYTES_MAX {
        true => Err(Failure::failed(format!(
            "standard input has more than {VALUE_BYTES_MAX} bytes, the maximum of a value"
        ))),
        false => Ok(value),
    }
}

impl LoadArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let name = self.file.display().to_string();
        let input: Box<dyn BufRead> = match name.as_str() {
            "-" => Box::new(io::stdin().lock()),
            _ => {
                let file = File::open(&self.file);
                let file = file.map_err(|error| Failure::failed(format!("{name}: {error}")))?;
                Box::new(BufReader::new(file))
            }
        };
        let cluster = self.cluster.connect()?;
        let started = Instant::now();
        let entries = load(&cluster, input, &name)?;
        let seconds = started.elapsed().as_secs_f64();
        match self.cluster.json {
            true => print_json(&serde_json::json!({ "entries": entries, "seconds": seconds })),
            false => println!("{entries} entries in {seconds:.1} s"),
        }
        Ok(())
    }
}

/// Sends the entries in the lines of `input`. Returns their number.
fn load(cluster: &Cluster, mut input: impl BufRead, name: &str) -> Result<u64, Failure> {
    let mut batch: Vec<KeyValue> = Vec::new();
    let (mut bytes, mut sent, mut number) = (0, 0_u64, 0_u64);
    let mut line = Vec::new();
    loop {
        line.clear();
        number += 1;
        let limit = LINE_BYTES_MAX as u64 + 2;
        let read = input.by_ref().take(limit).read_until(b'\n', &mut line);
        let read = read.map_err(|error| Failure::failed(format!("{name}: {error}")))?;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        let at_line = |text: &str| {
            Failure::failed(format!(
                "{name}: line {number}: {text}; the entries of earlier lines may be stored, {sent} are"
            ))
        };
        if read > 0 {
            if line.len() > LINE_BYTES_MAX {
                return Err(at_line("the line is longer than a key and a value can be"));
            }
            let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
                return Err(at_line("there is no tab between a key and a value"));
            };
            bytes += line.len();
            batch.push((line[..tab].to_vec(), line[tab + 1..].to_vec()));
        }
        if bytes >= BATCH_BYTES || read == 0 {
            let count = batch.len() as u64;
            cluster
                .put_all(std::mem::take(&mut batch))
                .map_err(failed)?;
            (bytes, sent) = (0, sent + count);
        }
        if read == 0 {
            return Ok(sent);
        }
    }
}
