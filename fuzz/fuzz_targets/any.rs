//! Has libFuzzer feed the target that this program is named after: see `crates/fuzz`.

#![no_main]

use fuzz::Outcomes;
use fuzz::targets::find;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let target = find(env!("CARGO_BIN_NAME")).expect("each of these programs has the name of a target");
    (target.run)(input, &mut Outcomes::default());
});
