//! Requests cut into reads at places the fuzzer chooses: they are the same requests, or the same error.
#![no_main]

use farbank_fuzz::{Input, pieces};
use farbank_server::resp::{Limits, Parser, Protocol};
use libfuzzer_sys::fuzz_target;

/// Low, so that the fuzzer meets it.
const LIMITS: Limits = Limits {
    bulk_bytes_max: 1000,
};

type Requests = Vec<Vec<Vec<u8>>>;

fuzz_target!(|data: &[u8]| run(Input(data)));

fn run(mut input: Input<'_>) {
    let window = 1 + input.below(4);
    let cuts: Vec<usize> = (0..input.below(8)).map(|_| 1 + input.below(64)).collect();
    let bytes = input.0;
    let whole = parse(&[bytes], 16);
    assert_eq!(
        whole,
        parse(&pieces(bytes, &cuts), window),
        "cut by {cuts:?}, {window} ahead"
    );
    if bytes.len() < 200 {
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(whole, parse(&single, 1), "byte by byte");
    }
}

/// Feeds the pieces one after another, as reads would deliver them, reading `most` requests ahead.
fn parse(pieces: &[&[u8]], most: usize) -> (Requests, Option<Protocol>) {
    let (mut parser, mut buffer, mut requests) = (Parser::default(), Vec::new(), Vec::new());
    let mut arrived = 0;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        arrived += piece.len();
        loop {
            let read = parser.read(&buffer, LIMITS, most);
            for index in 0..parser.len() {
                let args = parser.args(&buffer, index);
                assert!(parser.end(index) <= parser.consumed());
                requests.push(args.from(0).map(<[u8]>::to_vec).collect());
            }
            assert!(parser.consumed() <= buffer.len());
            // A2: what is held follows from what has come, never from what was announced.
            assert!(parser.held_bytes() <= 64 * arrived + 64 * 1024);
            assert!(parser.needed() <= buffer.len() + LIMITS.bulk_bytes_max + 2);
            buffer.drain(..parser.consumed());
            parser.next();
            match read {
                Err(error) => return (requests, Some(error)),
                Ok(count) if count < most => break,
                Ok(_) => {}
            }
        }
    }
    (requests, None)
}
