//! The lanes that have `farbank check` try to lose something.

use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Size;
use crate::run::{farbank, output, works};

/// Seeds of each persistency mode that a lane explores: others than the tests do.
const LANE_SEEDS: Range<u64> = 1000..1010;
/// What a release asks of each mode: time, distinct images in it, and seeds in one go.
const GATE_TIME: Duration = Duration::from_secs(300);
const GATE_IMAGES: u64 = 200_000;
const GATE_SEEDS: u64 = 16;

/// `farbank check <what>`, if the binary has it.
fn check(what: &str) -> Result<Command, String> {
    let mut command = farbank();
    if !works(command.get_program(), &["check", what, "--help"]) {
        return Err(format!(
            "it did not run: this farbank has no `check {what}`"
        ));
    }
    command.args(["check", what]);
    Ok(command)
}

/// A server under load is killed and started again, many times.
pub(crate) fn kill(size: Size) -> Result<(), String> {
    let cycles = if size == Size::Gate { "100" } else { "20" };
    output(check("kill")?.args(["--cycles", cycles])).map(|_| ())
}

/// The engine is crashed wherever it can be, in every persistency mode.
pub(crate) fn crash(size: Size) -> Result<(), String> {
    for mode in ["adr", "eadr", "page"] {
        let images = match size {
            Size::Lane => explore(mode, LANE_SEEDS)?,
            Size::Gate => explore_for(mode, GATE_TIME)?,
        };
        println!("{mode}: {images} distinct images");
        if images == 0 || (size == Size::Gate && images < GATE_IMAGES) {
            return Err(format!(
                "{mode}: {images} distinct images; a release asks for {GATE_IMAGES}"
            ));
        }
    }
    Ok(())
}

/// Explores one range of seeds after another until `time` has passed.
fn explore_for(mode: &str, time: Duration) -> Result<u64, String> {
    let start = Instant::now();
    let (mut images, mut first) = (0, 0);
    while start.elapsed() < time {
        images += explore(mode, first..first + GATE_SEEDS)?;
        first += GATE_SEEDS;
    }
    Ok(images)
}

/// Explores `seeds`. Returns how many distinct images were judged; an error if one was wrong.
fn explore(mode: &str, seeds: Range<u64>) -> Result<u64, String> {
    let mut command = check("crash")?;
    command.args(["--target", "kv", "--persistency", mode]);
    command.args([
        "--seeds",
        &format!("{}..{}", seeds.start, seeds.end),
        "--json",
    ]);
    let text = output(&mut command)?;
    let report = text.lines().last().unwrap_or_default();
    number(report, "distinct_images")
        .ok_or_else(|| format!("no distinct_images in the last line: {report}"))
}

/// The number called `name` in a line of JSON.
fn number(json: &str, name: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":"))?;
    let rest = rest.trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_number_is_found_by_its_name() {
        let json = r#"{"images":12,"distinct_images": 7}"#;
        assert_eq!(number(json, "distinct_images"), Some(7));
        assert_eq!(number(json, "images"), Some(12));
        assert_eq!(number(json, "kills"), None);
    }
}
