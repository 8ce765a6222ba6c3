//! The processor's cache, where what is needed lies anywhere in much memory.

use std::hint::black_box;

/// How much is asked of the memory at the same time: as much as a core has under way.
const AT_ONCE: usize = 16;

/// Brings what these refer to into the cache. Whoever then goes by one after the other does not wait for each: the memory gives
/// many at a time to who asks for the next without looking at the last. That is also why they are found first, and asked for
/// then.
pub(crate) fn bring<'a, T: Copy + 'a>(mut wanted: impl Iterator<Item = &'a T>) {
    let mut found = [None; AT_ONCE];
    loop {
        let mut count = 0;
        for (place, one) in found.iter_mut().zip(&mut wanted) {
            *place = Some(one);
            count += 1;
        }
        for one in found[..count].iter().flatten() {
            black_box(**one);
        }
        if count < AT_ONCE {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_however_many_there_are() {
        for count in [0, 1, 15, 16, 17, 40] {
            let (all, mut found) = ((0..count).collect::<Vec<usize>>(), Vec::new());
            bring(all.iter().inspect(|one| found.push(**one)));
            assert_eq!(found, all);
        }
    }
}
