use super::*;

const LIMITS: RequestLimits = RequestLimits {
    bulk_bytes_max: 512 << 20,
    is_authenticated: true,
};

type Requests = Vec<Vec<Vec<u8>>>;

/// Feeds `pieces` one after another, as reads would deliver them.
fn run(pieces: &[&[u8]]) -> (Requests, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut requests) = (RequestParser::default(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let read = parser.read(&buffer, LIMITS, 2);
            for index in 0..parser.whole.len() {
                let args = parser.args(&buffer, index);
                requests.push(args.from(0).map(<[u8]>::to_vec).collect());
            }
            buffer.drain(..parser.consumed());
            parser.next();
            match read {
                Err(error) => return (requests, Some(error)),
                Ok(count) if count < 2 => break,
                Ok(_) => {}
            }
        }
    }
    (requests, None)
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|w| w.as_bytes().to_vec()).collect()
}

#[test]
fn every_split_of_a_pipeline_gives_the_same_requests() {
    let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhe\r\no\r\n*0\r\nPING\r\n\r\n*1\r\n$4\r\nPING\r\n\
                  set a \"x\\x41\\n\" 'it\\'s'\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n*-1\r\n*1\r\n$1\r\nx\r\n";
    let expected = vec![
        words(&["SET", "k", "he\r\no"]),
        words(&["PING"]),
        words(&["PING"]),
        words(&["set", "a", "xA\n", "it's"]),
        words(&["GET", ""]),
        words(&["x"]),
    ];
    assert_eq!(run(&[input]), (expected.clone(), None));
    for first in 0..=input.len() {
        for second in first..=input.len() {
            let pieces = [&input[..first], &input[first..second], &input[second..]];
            assert_eq!(
                run(&pieces),
                (expected.clone(), None),
                "split at {first}, {second}"
            );
        }
    }
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(run(&bytes), (expected, None));
}

#[test]
fn protocol_errors_have_the_texts_of_redis() {
    for (input, text) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*\r\n", "invalid multibulk length"),
        ("*01\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\nxyz\r\n", "expected '$', got 'x'"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        ("*1\r\n$+1\r\n", "invalid bulk length"),
        ("set \"a\r\n", "unbalanced quotes in request"),
        ("set 'a\r\n", "unbalanced quotes in request"),
        ("set \"a\"b\r\n", "unbalanced quotes in request"),
    ] {
        let (requests, error) = run(&[input.as_bytes()]);
        assert!(requests.is_empty());
        let error = error.map(|e| e.to_string());
        assert_eq!(
            error,
            Some(format!("ERR Protocol error: {text}")),
            "{input:?}"
        );
    }
}

#[test]
fn a_line_above_64_kib_is_refused() {
    for (start, text) in [
        ("", "too big inline request"),
        ("*", "too big mbulk count string"),
        ("*1\r\n$", "too big bulk count string"),
    ] {
        let mut input = start.as_bytes().to_vec();
        input.resize(start.len() + LINE_BYTES_MAX - 1, b'1');
        assert_eq!(run(&[&input]).1, None);
        input.resize(start.len() + LINE_BYTES_MAX + 1, b'1');
        let error = run(&[&input]).1.map(|e| e.to_string());
        assert_eq!(error, Some(format!("ERR Protocol error: {text}")));
    }
}

#[test]
fn a_nul_before_a_lines_end_hides_it() {
    for start in [
        "PING\0\r\n",
        "*\x001\r\n",
        "*1\r\n\x002\r\n",
        "*1\r\nx\x00\r\n",
        "*1\r\n$\x002\r\n",
    ] {
        let mut input = start.as_bytes().to_vec();
        assert_eq!(run(&[&input]), (vec![], None), "{start:?}");
        input.resize(input.len() + LINE_BYTES_MAX, b'1');
        assert!(run(&[&input]).1.is_some(), "{start:?}");
    }
}

#[test]
fn announced_lengths_allocate_no_memory() {
    let mut parser = RequestParser::default();
    let input = b"*1048576\r\n$536870912\r\nx";
    assert_eq!(parser.read(input, LIMITS, 16), Ok(0));
    assert!(parser.held_bytes() < 1024);
    assert_eq!(parser.needed(), 22 + 536_870_912 + 2);
}

#[test]
fn memory_of_a_request_with_many_arguments_is_freed_after_it() {
    let mut input = b"*100000\r\n".to_vec();
    for _ in 0..100_000 {
        input.extend_from_slice(b"$1\r\nx\r\n");
    }
    let mut parser = RequestParser::default();
    for end in (0..input.len()).step_by(1000) {
        assert_eq!(parser.read(&input[..end], LIMITS, 16), Ok(0));
    }
    assert_eq!(parser.read(&input, LIMITS, 16), Ok(1));
    assert_eq!(parser.args(&input, 0).len(), 100_000);
    parser.next();
    assert!(parser.held_bytes() <= 2 * SPANS_KEPT * size_of::<ArgSpan>());
}

#[test]
fn random_bytes_never_panic_and_parse_the_same_for_every_split() {
    let alphabet = b"*$\r\n0123456789-\"'\\x aGET\0\xff";
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..20_000 {
        let input: Vec<u8> = (0..random(60))
            .map(|_| alphabet[random(alphabet.len())])
            .collect();
        let whole = run(&[&input]);
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(run(&bytes), whole, "round {round}: {input:?}");
    }
}

#[test]
fn queued_requests_are_read_back_unchanged() {
    let input = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
    let mut parser = RequestParser::default();
    assert_eq!(parser.read(input, LIMITS, 16), Ok(1));
    let mut kept = QueuedRequests::default();
    kept.push(parser.args(input, 0));
    kept.push(parser.args(input, 0));
    assert_eq!(kept.len(), 2);
    assert_eq!(kept.args(1).at(1), b"a");
    assert_eq!(kept.args(1).get(2), None);
}

#[test]
fn many_queued_requests_use_little_more_memory_than_their_bytes() {
    let request = |value: &str| {
        let mut bytes = Vec::new();
        crate::protocol::resp::request(&mut bytes, &["SET", "k", value]);
        bytes
    };
    let mut kept = QueuedRequests::default();
    let mut sum = 0;
    let lengths = || (0..4_000).map(|at| (at * 37) % 400 + if at % 500 == 0 { 300_000 } else { 0 });
    for length in lengths() {
        let input = request(&"v".repeat(length));
        let mut parser = RequestParser::default();
        assert_eq!(parser.read(&input, LIMITS, 16), Ok(1));
        kept.push(parser.args(&input, 0));
        sum += "SETk".len() + length + 3 * size_of::<ArgSpan>() + size_of::<usize>();
    }
    for (at, length) in lengths().enumerate() {
        let args = kept.args(at);
        let words = [args.at(0), args.at(1), args.at(2)].map(<[u8]>::len);
        assert_eq!((args.len(), words), (3, [3, 1, length]), "request {at}");
    }
    assert_eq!((kept.len(), kept.arg_count()), (4_000, 12_000));
    assert!(kept.bytes() >= sum);
    assert!(
        kept.bytes() < sum + sum / 20 + 2 * CHUNK_BYTES,
        "{} for {sum}",
        kept.bytes()
    );
}

#[test]
fn quoted_words_are_read_back() {
    assert_eq!(quoted(b"a b"), b"\"a b\"");
    assert_eq!(quoted(b"\\\"\n\x07\xff\0"), b"\"\\\\\\\"\\n\\a\\xff\\x00\"");
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(words_of(&quoted(&all)), Some(vec![all]));
    assert_eq!(words_of(&quoted(b"")), Some(vec![vec![]]));
}
