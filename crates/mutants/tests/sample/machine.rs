//! A program that prints all that it computes, so that whatever mistake is made in it shows.

use std::fmt;

struct Steps(u32);

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} of {}", self.0 + 1, 10 * 2)
    }
}

#[derive(Default)]
struct Machine {
    steps: u32,
    last: Option<u32>,
    log: Vec<u32>,
}

impl Machine {
    fn note(&mut self, step: u32) {
        self.log.push(step);
        self.last = Some(step);
    }

    fn advance(&mut self, by: u32) -> Result<u32, String> {
        if by == 0 {
            return Err("nothing to do".to_owned());
        }
        if let Some(last) = self.last
            && last > 1
            && by > 3
        {
            self.note(100);
            return Ok(self.steps);
        }
        self.steps += by;
        match by {
            1 => self.note(1),
            2 if self.steps < 9 => self.note(2),
            _ => {}
        }
        Ok(self.steps)
    }

    fn even(&self) -> impl Iterator<Item = u32> + '_ {
        self.log.iter().copied().filter(|step| step % 2 == 0)
    }

    fn has(&self, step: u32) -> bool {
        self.log.iter().any(|one| *one == step) && self.steps > 3
    }

    fn first(&self) -> Option<u32> {
        self.log.first().copied()
    }
}

fn sum(begin: usize, end: usize) -> usize {
    let mut sum = 0;
    for one in begin..end {
        sum += one;
    }
    sum
}

fn bounded(value: u32, bound: u32) -> u32 {
    value.min(bound).saturating_sub(1) << 1 | value & 1
}

fn halves(value: i64, other: i64) -> i64 {
    -(value - other) / 2
}

fn turns(mut from: u8) -> u32 {
    let mut turns = 0;
    while from > 0 {
        from -= 1;
        turns += 2;
    }
    turns
}

fn clear(log: &mut Vec<u32>, is_wanted: bool) {
    if !is_wanted {
        return;
    }
    log.clear();
}

const SCRIPTS: [&[u32]; 3] = [&[0, 1, 1, 2, 3, 4, 2, 5, 4, 2], &[1, 5, 2], &[1, 2, 5]];
const PAIRS: [(u32, u32); 5] = [(0, 0), (0, 3), (2, 7), (7, 2), (5, 5)];

fn main() {
    for script in SCRIPTS {
        let mut machine = Machine::default();
        for by in script.iter().copied() {
            println!("{:?} {:?} {:?}", machine.advance(by), machine.last, machine.log);
            println!("{:?} {} {}", machine.even().collect::<Vec<u32>>(), machine.has(by), machine.has(100));
            println!("{:?} {}", machine.first(), Steps(machine.steps));
        }
        for is_wanted in [false, true] {
            clear(&mut machine.log, is_wanted);
            println!("{:?}", machine.log);
        }
    }
    for (one, other) in PAIRS {
        println!("{} {}", sum(one as usize, other as usize), bounded(one, other));
        println!("{} {}", halves(one.into(), other.into()), turns(one as u8));
    }
}
