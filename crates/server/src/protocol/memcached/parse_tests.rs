use super::*;

const LIMITS: TextLimits = TextLimits {
    item_bytes_max: 4096,
};

fn request(input: &[u8]) -> (TextRequest<'_>, usize, usize) {
    match read(input, 0, LIMITS) {
        ParseStep::Whole {
            request,
            used,
            skip,
        } => (request, used, skip),
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(input)),
    }
}

fn fault(input: &str) -> (&'static str, bool) {
    match request(input.as_bytes()).0 {
        TextRequest::Fault { text, quiet } => (text, quiet),
        other => panic!("{input:?}: {other:?}"),
    }
}

#[test]
fn a_request_is_its_line_and_its_value() {
    let (got, used, skip) = request(b"set key 5 -1 3 noreply\r\nab\0\r\nget x\r\n");
    let TextRequest::Store(store) = got else {
        panic!("{got:?}");
    };
    assert_eq!((used, skip), (29, 0));
    assert_eq!((store.how, store.key), (StoreCondition::Set, &b"key"[..]));
    assert_eq!((store.flags, store.exptime), (5, -1));
    assert_eq!(store.payload, ValuePayload::Whole(b"ab\0"));
    assert!(store.quiet);
    let (got, used, _) = request(b"  gets  a bc \nget");
    let TextRequest::Get { keys, cas: true } = got else {
        panic!("{got:?}");
    };
    assert_eq!(keys.collect::<Vec<_>>(), [&b"a"[..], b"bc"]);
    assert_eq!(used, 14);
    let (got, ..) = request(b"cas k 0 0 1 17\r\nx\r\n");
    assert!(matches!(
        got,
        TextRequest::Store(StoreRequest {
            how: StoreCondition::Cas,
            cas: 17,
            ..
        })
    ));
}

#[test]
fn a_nul_ends_the_words_of_a_line_but_not_the_line() {
    let (got, used, _) = request(b"get a\0b\r\nget c\r\n");
    let TextRequest::Get { keys, .. } = got else {
        panic!("{got:?}");
    };
    assert_eq!((keys.collect::<Vec<_>>(), used), (vec![&b"a"[..]], 9));
}

#[test]
fn what_is_not_whole_says_what_it_needs() {
    let part = |scanned, needed| ParseStep::Part { scanned, needed };
    assert_eq!(read(b"get fo", 0, LIMITS), part(6, 0));
    assert_eq!(read(b"set k 0 0 100\r\nab", 0, LIMITS), part(0, 117));
    assert_eq!(read(b"ms k 100 T0\r\nab", 0, LIMITS), part(0, 115));
}

#[test]
fn a_value_that_is_too_large_is_refused_after_its_line_and_skipped() {
    for line in ["set k 0 0 1000000000\r\n", "ms k 1000000000\r\n"] {
        let (got, used, skip) = request(line.as_bytes());
        assert_eq!((used, skip), (line.len(), 1_000_000_002));
        assert!(matches!(
            got,
            TextRequest::Store(StoreRequest {
                payload: ValuePayload::TooLarge,
                ..
            }) | TextRequest::MetaSet {
                payload: ValuePayload::TooLarge,
                ..
            }
        ));
    }
}

#[test]
fn a_value_without_a_line_end_at_its_announced_length_is_consumed() {
    let (got, used, _) = request(b"set k 0 0 3\r\nabcdefgh\r\n");
    assert!(matches!(
        got,
        TextRequest::Store(StoreRequest {
            payload: ValuePayload::Misplaced,
            ..
        })
    ));
    assert_eq!(used, 18);
}

#[test]
fn malformed_lines_get_the_error_replies_of_memcached() {
    let long = "k".repeat(251);
    for (line, text, quiet) in [
        ("set k 0 0\r\n", ERROR, false),
        ("set k 0 0 1 noreply more\r\n", ERROR, false),
        ("cas k 0 0 1\r\n", ERROR, false),
        ("set k x 0 1\r\n", BAD_FORMAT, false),
        ("set k 0 x 1 noreply\r\n", BAD_FORMAT, true),
        ("set k 0 0 -1\r\n", BAD_FORMAT, false),
        ("set k 0 0 4294967295\r\n", BAD_FORMAT, false),
        ("set k 0 0 2147483647\r\n", BAD_FORMAT, false),
        ("cas k 0 0 1 x\r\n", BAD_FORMAT, false),
        ("ms\r\n", ERROR, false),
        ("ms k\r\n", BAD_FORMAT, false),
        ("ms k abc\r\n", BAD_FORMAT, false),
    ] {
        assert_eq!(fault(line), (text, quiet), "{line:?}");
    }
    assert_eq!(fault(&format!("set {long} 0 0 1\r\n")), (BAD_FORMAT, false));
}

#[test]
fn only_lines_of_keys_may_be_long() {
    let keys = format!("get {}", "k ".repeat(3000));
    assert!(matches!(
        read(keys.as_bytes(), 0, LIMITS),
        ParseStep::Part { .. }
    ));
    assert!(matches!(
        request(format!("{keys}\r\n").as_bytes()).0,
        TextRequest::Get { .. }
    ));
    let blanks = " ".repeat(101);
    for long in [
        format!("set {}", "k".repeat(3000)),
        "g".repeat(2049),
        format!("{blanks}{keys}"),
        format!("{keys}\0"),
        format!("get {}", "k".repeat(KEYS_LINE_BYTES_MAX)),
    ] {
        assert_eq!(read(long.as_bytes(), 0, LIMITS), ParseStep::Hangup);
        let whole = format!("{long}\r\n");
        assert_eq!(read(whole.as_bytes(), 0, LIMITS), ParseStep::Hangup);
    }
}

#[test]
fn numbers_are_parsed_as_in_c() {
    assert_eq!(u64_of(b"18446744073709551615"), Some(u64::MAX));
    assert_eq!(u64_of(b"18446744073709551616"), None);
    assert_eq!(u64_of(b"-1"), None);
    assert_eq!(u64_of(b"+7 \r"), Some(7));
    assert_eq!(u64_of(b"\t7"), Some(7));
    assert_eq!(u32_of(b"4294967296"), Some(0));
    assert_eq!(i32_of(b"-2147483648"), Some(i32::MIN));
    assert_eq!(i32_of(b"4294967295"), Some(-1));
    for bad in ["", "-", "x", "1x", " ", "0x1", "1.5"] {
        assert_eq!(u64_of(bad.as_bytes()), None, "{bad:?}");
        assert_eq!(i32_of(bad.as_bytes()), None, "{bad:?}");
    }
}
