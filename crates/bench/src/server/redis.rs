//! Load clients for RESP servers: `redis-benchmark`.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::process::{MeasuredServer, POLL, spawn};
use super::{CLIENTS, KEYS, ServerOperation, VALUE_BYTES};
use crate::figure::Error;

/// Runs `redis-benchmark` with `requests` requests for uniformly chosen keys. Returns the requests per second that it
/// reports.
pub(super) fn drive(
    program: &Path,
    server: &MeasuredServer,
    operation: ServerOperation,
    pipeline: u64,
    requests: u64,
    mut look: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let mut command = Command::new(program);
    command
        .args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "--csv"])
        .args(["-t", operation.name()])
        .args(["-c", &CLIENTS.to_string()])
        .args(["-d", &VALUE_BYTES.to_string()])
        .args(["-r", &KEYS.to_string()])
        .args(["-n", &requests.to_string()])
        .args(["-P", &pipeline.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn(&mut command, program)?;
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(Error::doing("wait"))? {
            break status;
        }
        look()?;
        thread::sleep(POLL);
    };
    // Both outputs are short and fit into the pipes.
    let out = all_of(child.0.stdout.take())?;
    let complaint = all_of(child.0.stderr.take())?;
    let a_second = requests_a_second(&out).filter(|_| status.success());
    a_second.ok_or_else(|| {
        Error::Failed(format!(
            "redis-benchmark ended with {status} on {}: {}{}",
            server.name,
            out.trim(),
            complaint.trim()
        ))
    })
}

fn all_of(from: Option<impl Read>) -> Result<String, Error> {
    let mut text = String::new();
    let read = from.map_or(Ok(0), |mut from| from.read_to_string(&mut text));
    read.map_err(Error::doing("read what redis-benchmark prints"))?;
    Ok(text)
}

/// Parses requests per second from the output of `redis-benchmark --csv`.
fn requests_a_second(csv: &str) -> Option<f64> {
    let (head, row) = csv.trim().split_once('\n')?;
    let fields = |line: &str| -> Vec<String> {
        line.trim()
            .split(',')
            .map(|field| field.trim_matches('"').to_owned())
            .collect()
    };
    let place = fields(head).iter().position(|field| field == "rps")?;
    fields(row).get(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_redis_benchmark_is_parsed() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\"\n\
                   \"SET\",\"1204819.25\",\"2.1\",\"0.5\"\n";
        assert_eq!(requests_a_second(csv), Some(1_204_819.25));
        for text in [
            "",
            "WARNING: could not fetch server CONFIG",
            "\"test\"\n\"SET\"\n",
        ] {
            assert_eq!(requests_a_second(text), None, "{text:?}");
        }
    }
}
