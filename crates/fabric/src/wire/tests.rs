use farbank_pm::rng::Rng;

use super::auth::PROOF_BYTES;
use super::*;
use crate::addr::GAddr;
use crate::fabric::Verb;
use crate::service::{ServiceRequest, ServiceResponse};

/// Decodes a frame and its body with every decoder that takes its kind. Returns whether all accept it.
fn decodes(bytes: &[u8]) -> bool {
    let Ok(Some((frame, _))) = Frame::split(bytes, FRAME_BYTES_MAX) else {
        return false;
    };
    let body = frame.body;
    let read_all = |mut batch: BatchReader<'_>| {
        response_bytes(batch)?;
        while batch.next()?.is_some() {}
        Ok(())
    };
    let decoded: Result<(), WireError> = match frame.kind {
        FrameKind::Hello => Hello::decode(body).map(drop),
        FrameKind::Challenge => Challenge::decode(body).map(drop),
        FrameKind::Proof => decode_proof(body).map(drop),
        FrameKind::Welcome | FrameKind::Results => Ok(()),
        FrameKind::Refused => decode_refusal(body).map(drop),
        FrameKind::Batch => BatchReader::new(body).and_then(read_all),
        FrameKind::Call => decode_call(body).map(drop),
        FrameKind::Response => decode_response(body).map(drop),
        FrameKind::Failure => decode_failure(body).map(drop),
        FrameKind::Report => Report::decode(body).map(drop),
        FrameKind::Grant => Grant::decode(body).map(drop),
        FrameKind::OpenEndpoint => match body.is_empty() {
            true => Ok(()),
            false => Err(WireError::LeftOver),
        },
        #[cfg(feature = "libfabric")]
        FrameKind::Endpoint => super::EndpointName::decode(body).map(drop),
        #[cfg(not(feature = "libfabric"))]
        FrameKind::Endpoint => Ok(()),
    };
    decoded.is_ok()
}

fn hello() -> Hello {
    Hello {
        role: Role::Compute,
        server: 3,
        number: 70,
        epoch: 5,
        process: 2,
        thread: 1,
        attempt: 9,
        nonce: [7; NONCE_BYTES],
    }
}

fn challenge() -> Challenge {
    Challenge {
        server: 3,
        generation: 11,
        host_bytes: 1 << 30,
        lock_bytes: 4096,
        lease_ns: 5,
        nonce: [8; NONCE_BYTES],
    }
}

fn verbs() -> Vec<Verb> {
    vec![
        Verb::masked_cas(GAddr::lock(1, 8), 2, 3, 0xff00),
        Verb::read(GAddr::host(1, 4096), 100),
        Verb::write(GAddr::host(1, 4099), vec![1, 2, 3]),
        Verb::add(GAddr::host(1, 64), u64::MAX),
    ]
}

/// Returns a frame of each kind.
fn one_of_each() -> Vec<Vec<u8>> {
    let frame = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        encode(&mut out);
        out
    };
    let grant = Grant {
        lease_ns: 1,
        version: 2,
        floors: Floors::new(),
    };
    let report = Report {
        generation: 1,
        applied: 2,
        floors: Floors::new(),
    };
    let check = ServiceRequest::CheckLease {
        compute: 4,
        epoch: 2,
    };
    let chunk = ServiceResponse::Chunk { at: 8, bytes: 9 };
    vec![
        frame(&|out| hello().encode(out)),
        frame(&|out| challenge().encode(&[1; PROOF_BYTES], out)),
        frame(&|out| encode_proof(&[2; PROOF_BYTES], out)),
        frame(&|out| encode_welcome(out)),
        frame(&|out| encode_refusal(Refusal::Fenced, out)),
        frame(&|out| assert!(encode_batch(1, &verbs(), out))),
        frame(&|out| encode_call(2, check, out)),
        frame(&|out| encode_response(3, chunk, out)),
        frame(&|out| encode_failure(4, Failure::Rejected, out)),
        frame(&|out| report.encode(out)),
        frame(&|out| grant.encode(out)),
    ]
}

#[test]
fn each_frame_decodes_and_every_prefix_of_it_is_incomplete() {
    for frame in one_of_each() {
        assert!(decodes(&frame), "{frame:?}");
        for len in 0..frame.len() {
            assert_eq!(
                Frame::split(&frame[..len], FRAME_BYTES_MAX),
                Ok(None),
                "{len} of {frame:?}"
            );
        }
    }
}

#[test]
fn a_frame_whose_body_is_too_short_or_too_long_is_refused() {
    for frame in one_of_each() {
        if frame[4] == FrameKind::Welcome as u8 {
            continue;
        }
        let short = frame.len() - 5;
        let mut cut = frame[..frame.len() - 1].to_vec();
        cut[..4].copy_from_slice(&(short as u32).to_le_bytes());
        assert!(!decodes(&cut), "{cut:?}");
        let mut longer = frame.clone();
        longer.push(0);
        longer[..4].copy_from_slice(&(short as u32 + 2).to_le_bytes());
        assert!(!decodes(&longer), "{longer:?}");
    }
}

#[test]
fn a_length_above_the_maximum_is_refused_before_the_frame_has_arrived() {
    let mut head = vec![0; HEAD_BYTES];
    head[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = Frame::split(&head, FRAME_BYTES_MAX).unwrap_err();
    assert!(matches!(error, WireError::TooLong { .. }), "{error}");
}

#[test]
fn a_batch_whose_results_exceed_a_frame_is_refused_by_both_sides() {
    let mut out = Vec::new();
    let many = vec![Verb::read(GAddr::host(0, 0), FRAME_BYTES_MAX / 2); 3];
    assert!(!encode_batch(1, &many, &mut out) && out.is_empty());
    put_frame(&mut out, FrameKind::Batch, 1, |out| {
        out.extend([1, 0, 1]);
        out.extend([0; 8]);
        out.extend(u32::MAX.to_le_bytes());
    });
    assert!(!decodes(&out));
    assert!(!encode_batch(1, &[], &mut Vec::new()));
}

#[test]
fn results_fill_in_the_verbs() {
    let mut verbs = verbs();
    let mut body = 77_u64.to_le_bytes().to_vec();
    body.extend([5; 100]);
    body.extend(78_u64.to_le_bytes());
    decode_results(&body, &mut verbs).unwrap();
    assert_eq!((verbs[0].found(), verbs[3].found()), (77, 78));
    assert_eq!(verbs[1].clone().into_bytes(), [5; 100]);
    body.push(0);
    assert_eq!(decode_results(&body, &mut verbs), Err(WireError::LeftOver));
}

#[test]
fn a_proof_holds_only_for_its_author_its_key_and_its_handshake() {
    assert!(SharedKey::new([1; KEY_BYTES_MIN - 1]).is_none());
    let key = SharedKey::new([1; KEY_BYTES_MIN]).unwrap();
    let other = SharedKey::new([2; KEY_BYTES_MIN]).unwrap();
    let (hello, fields) = (b"hello".as_slice(), challenge().fields());
    let proof = key.prove(ProofOf::Server, hello, &fields);
    assert!(key.is_proof(ProofOf::Server, hello, &fields, &proof));
    assert!(!key.is_proof(ProofOf::Client, hello, &fields, &proof));
    assert!(!other.is_proof(ProofOf::Server, hello, &fields, &proof));
    assert!(!key.is_proof(ProofOf::Server, b"hullo", &fields, &proof));
    let mut next = challenge();
    next.nonce[0] ^= 1;
    assert!(!key.is_proof(ProofOf::Server, hello, &next.fields(), &proof));
    assert_eq!(format!("{key:?}"), "SharedKey(16 bytes)");
}

fn any_bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    let len = rng.below(most + 1);
    (0..len).map(|_| rng.draw() as u8).collect()
}

fn any_verb(rng: &mut Rng) -> Verb {
    let at = GAddr(rng.draw());
    match rng.below(4) {
        0 => Verb::read(at, rng.below(2000) as usize),
        1 => Verb::write(at, any_bytes(rng, 300)),
        2 => Verb::masked_cas(at, rng.draw(), rng.draw(), rng.draw()),
        _ => Verb::add(at, rng.draw()),
    }
}

/// Returns the verb that a decoder has found.
fn owned(verb: VerbRef<'_>) -> Verb {
    match verb {
        VerbRef::Read { at, len } => Verb::read(at, len),
        VerbRef::Write { at, bytes } => Verb::write(at, bytes.to_vec()),
        VerbRef::Cas { at, old, new, mask } => Verb::masked_cas(at, old, new, mask),
        VerbRef::Add { at, by } => Verb::add(at, by),
    }
}

#[test]
fn any_batch_is_decoded_as_it_was_encoded() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let (id, count) = (rng.draw(), 1 + rng.below(20));
        let verbs: Vec<Verb> = (0..count).map(|_| any_verb(&mut rng)).collect();
        let mut out = vec![9];
        assert!(encode_batch(id, &verbs, &mut out), "seed {seed}");
        let (frame, len) = Frame::split(&out[1..], FRAME_BYTES_MAX).unwrap().unwrap();
        let expected = (FrameKind::Batch, id, out.len() - 1);
        assert_eq!((frame.kind, frame.id, len), expected, "seed {seed}");
        let mut batch = BatchReader::new(frame.body).unwrap();
        let mut decoded = Vec::new();
        while let Some(verb) = batch.next().unwrap() {
            decoded.push(owned(verb));
        }
        assert_eq!(decoded, verbs, "seed {seed}");
    }
}

#[test]
fn no_bytes_make_a_decoder_panic() {
    let frames = one_of_each();
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let bytes = any_bytes(&mut rng, 300);
        decodes(&bytes);
        let mut framed = (bytes.len() as u32 + 12).to_le_bytes().to_vec();
        framed.extend([rng.below(40) as u8, 0, 0, 0]);
        framed.extend([0; 8]);
        framed.extend(&bytes);
        decodes(&framed);
        let mut damaged = frames[rng.below(frames.len() as u64) as usize].clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(damaged.len() as u64) as usize;
            damaged[at] ^= rng.draw() as u8;
        }
        decodes(&damaged);
    }
}
