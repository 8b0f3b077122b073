//! Opens pools whose two superblock copies have arbitrary bytes, partly with valid checksums. A pool opens with a valid
//! copy, repairs the other one, and has the same content when it is opened again.
#![no_main]

use farbank_fuzz::Input;
use farbank_fuzz::format::{COPIES, COPY, SEGMENT, seal_superblock};
use farbank_fuzz::pools::{POOL, bases, image};
use farbank_pm::pool::{Pool, ROOT_WORDS};
use farbank_pm::sim::{Persistency, Sim};
use farbank_pm::{Medium, Off, PersistCtx};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| run(Input(data)));

fn run(mut input: Input<'_>) {
    let how = input.number(1);
    let mut bytes = bases()[0].bytes.clone();
    for (copy, start) in COPIES.into_iter().enumerate() {
        let block = &mut bytes[start..start + COPY];
        if how >> (2 * copy) & 1 != 0 {
            let any = input.bytes(COPY);
            block[..any.len()].copy_from_slice(any);
        } else {
            for _ in 0..input.below(6) {
                let at = input.below(COPY / 8) * 8;
                block[at..at + 8].copy_from_slice(&input.number(8).to_le_bytes());
            }
        }
        if how >> (2 * copy + 1) & 1 != 0 {
            seal_superblock(block);
        }
    }
    if input.below(4) == 3 {
        bytes.truncate(POOL - input.below(9) * SEGMENT / 2);
    }
    let sim = Sim::from_image(image(&bytes, &bases()[0]), Persistency::Adr);
    open_and_use(&sim, input.number(1));
}

fn open_and_use(sim: &Sim, grow: u64) {
    let mut ctx = PersistCtx::new(0);
    let Ok(pool) = Pool::open(sim.clone(), &mut ctx) else {
        return;
    };
    let end = pool.segment(pool.segments()).0;
    assert!(end <= sim.len(), "a pool longer than its medium");
    assert!(pool.segment_bytes().is_power_of_two());
    let mut copies = [[0; COPY]; 2];
    for (copy, at) in copies.iter_mut().zip(COPIES) {
        sim.copy_out(Off(at as u64), copy);
    }
    // All fields except the reserved ones, which are never read.
    for field in [0..88, 128..448] {
        let [a, b] = copies.each_ref().map(|copy| &copy[field.clone()]);
        assert!(
            a == b,
            "the copies differ in {field:?} after open: {a:x?}, {b:x?}"
        );
    }

    let known = (
        pool.id(),
        pool.segments(),
        pool.segment_bytes(),
        pool.root(),
    );
    drop(pool);
    let pool = Pool::open(sim.clone(), &mut ctx).expect("a pool that opened once opens again");
    assert_eq!(
        known,
        (
            pool.id(),
            pool.segments(),
            pool.segment_bytes(),
            pool.root()
        )
    );

    let root = [grow; ROOT_WORDS];
    pool.set_root(&mut ctx, &root)
        .expect("memory does not fail");
    let segments = pool.segments().saturating_add(grow as u32 % 4);
    let grown = pool.segment_bytes() <= 1 << 20 && pool.grow(&mut ctx, segments).is_ok();
    drop(pool);
    let pool = Pool::open(sim.clone(), &mut ctx).expect("a pool opens after set_root and grow");
    assert_eq!(pool.root(), root);
    assert_eq!(pool.segments(), if grown { segments } else { known.1 });
}
