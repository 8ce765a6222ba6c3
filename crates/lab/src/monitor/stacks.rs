//! Kernel stacks as `/proc/…/stack` tells them, counted by where they were found.

use std::collections::HashMap;

/// More different ones than this are not kept.
const TEXTS_MAX: usize = 2000;

/// Counts stacks. Their texts are kept as they were read, since most are the same ones over and over, and
/// folded at the end.
#[derive(Default)]
pub struct Stacks {
    numbers: HashMap<Vec<u8>, usize>,
    /// By place and text.
    counts: HashMap<(usize, usize), u64>,
}

impl Stacks {
    /// Counts one that was found in this place, and gives its number for [`Stacks::count_again`]; `None` if
    /// it is not kept.
    pub fn count(&mut self, place: usize, text: &[u8]) -> Option<usize> {
        let number = match self.numbers.get(text) {
            Some(number) => *number,
            None if self.numbers.len() >= TEXTS_MAX => return None,
            None => {
                let number = self.numbers.len();
                self.numbers.insert(text.to_vec(), number);
                number
            }
        };
        self.count_again(place, number);
        Some(number)
    }

    /// Counts one that was counted before.
    pub fn count_again(&mut self, place: usize, number: usize) {
        *self.counts.entry((place, number)).or_default() += 1;
    }

    /// How often which was found in which place, folded. The same may be there more than once.
    pub fn folded(&self) -> impl Iterator<Item = (usize, String, u64)> {
        let texts: HashMap<usize, String> =
            self.numbers.iter().map(|(text, number)| (*number, folded(text))).collect();
        let of = move |number: &usize| texts.get(number).cloned().unwrap_or_default();
        self.counts.iter().map(move |((place, number), count)| (*place, of(number), *count))
    }
}

/// The function that waits, which is what `/proc/…/wchan` tells too. `None` of a thread that runs.
pub fn innermost(text: &[u8]) -> Option<&str> {
    functions(text).next()
}

/// Names of functions, the outermost first, with `;` between them, as flame graphs are drawn from
/// (<https://github.com/brendangregg/FlameGraph#2-fold-stacks>).
fn folded(text: &[u8]) -> String {
    let mut functions: Vec<&str> = functions(text).collect();
    functions.reverse();
    functions.join(";")
}

/// Of lines like `[<0>] blk_mq_get_tag+0x11b/0x2e0 [nvme]`, the innermost first.
fn functions(text: &[u8]) -> impl Iterator<Item = &str> {
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter_map(|line| {
        let (_, function) = line.split_once("] ")?;
        function.split(['+', ' ']).next().filter(|name| !name.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: &str = "[<0>] anon_pipe_read+0x366/0x410\n[<0>] vfs_read+0x32c/0x360\n[<0>] ksys_read+0xba/0xe0\n\
                         [<0>] do_syscall_64+0x71/0x280\n[<0>] entry_SYSCALL_64_after_hwframe+0x76/0x7e\n";

    #[test]
    fn stacks_are_folded_as_captured() {
        let expected = "entry_SYSCALL_64_after_hwframe;do_syscall_64;ksys_read;vfs_read;anon_pipe_read";
        assert_eq!(folded(READS.as_bytes()), expected);
        assert_eq!(innermost(READS.as_bytes()), Some("anon_pipe_read"));
        let module = b"[<0>] nvme_wait.isra.0+0x1b/0x2e0 [nvme]\n[<0>] kthread+0x1/0x2\n[<0>] ret_fr";
        assert_eq!(folded(module), "ret_fr;kthread;nvme_wait.isra.0");
        assert_eq!((folded(b""), innermost(b"")), (String::new(), None));
    }

    #[test]
    fn the_same_stack_in_two_places_is_counted_in_each() {
        let mut stacks = Stacks::default();
        let number = stacks.count(3, READS.as_bytes()).unwrap();
        assert_eq!(stacks.count(4, READS.as_bytes()), Some(number));
        stacks.count_again(4, number);
        assert_eq!(stacks.count(4, b"[<0>] futex_do_wait+0x46/0x90\n"), Some(number + 1));
        let mut found: Vec<_> =
            stacks.folded().map(|(place, stack, count)| (place, stack.len(), count)).collect();
        found.sort_unstable();
        assert_eq!(found, [(3, 78, 1), (4, 13, 1), (4, 78, 2)]);
        (0..TEXTS_MAX).for_each(|different| _ = stacks.count(5, format!("[<0>] f{different}").as_bytes()));
        assert_eq!(stacks.count(5, b"[<0>] one_more"), None);
        assert_eq!(stacks.count(3, READS.as_bytes()), Some(number), "those that are known are counted on");
    }
}
