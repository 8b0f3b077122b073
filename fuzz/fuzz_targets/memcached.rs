//! memcached's requests cut into reads at places the fuzzer chooses: they are the same requests, and end alike.
#![no_main]

use farbank_fuzz::{Input, pieces};
use farbank_server::memcached::parse::{Limits, Payload, Request, Step, read};
use libfuzzer_sys::fuzz_target;

/// Low, so that the fuzzer meets it.
const LIMITS: Limits = Limits {
    item_bytes_max: 1000,
};

fuzz_target!(|data: &[u8]| run(Input(data)));

fn run(mut input: Input<'_>) {
    let cuts: Vec<usize> = (0..input.below(8)).map(|_| 1 + input.below(64)).collect();
    let bytes = input.0;
    let whole = parse(&[bytes]);
    assert_eq!(whole, parse(&pieces(bytes, &cuts)), "cut by {cuts:?}");
    if bytes.len() < 200 {
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(whole, parse(&single), "byte by byte");
    }
}

/// Feeds the pieces one after another, as reads would deliver them: the requests in words, and whether the
/// connection would be closed.
fn parse(pieces: &[&[u8]]) -> (Vec<String>, bool) {
    let (mut buffer, mut requests) = (Vec::new(), Vec::new());
    let (mut hint, mut skip) = (0, 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let skipped = skip.min(buffer.len());
            skip -= skipped;
            buffer.drain(..skipped);
            if skip > 0 || buffer.is_empty() {
                break;
            }
            match read(&buffer, std::mem::take(&mut hint), LIMITS) {
                Step::Whole {
                    request,
                    used,
                    skip: more,
                } => {
                    assert!(used > 0 && used <= buffer.len());
                    check(&request, more);
                    requests.push(format!("{request:?}"));
                    buffer.drain(..used);
                    skip = more;
                }
                Step::Part { scanned, needed } => {
                    assert!(scanned <= buffer.len());
                    // A2: what is waited for is bounded by what may be stored.
                    assert!(needed <= 2048 + 2 + LIMITS.item_bytes_max + 2);
                    hint = scanned;
                    break;
                }
                Step::Hangup => return (requests, true),
            }
        }
    }
    (requests, false)
}

/// What is taken is no larger than it may be, and only what is too large is skipped.
fn check(request: &Request<'_>, skip: usize) {
    let payload = match request {
        Request::Store(store) => store.payload,
        Request::MetaSet { payload, .. } => *payload,
        _ => Payload::Misplaced,
    };
    match payload {
        Payload::Whole(value) => assert!(value.len() <= LIMITS.item_bytes_max && skip == 0),
        Payload::Misplaced => assert_eq!(skip, 0),
        Payload::TooLarge => assert!(skip >= 2),
    }
}
