//! Mutation testing with one build for all mutants.
//!
//! A mutant is the program with one small mistake. If no test fails of it, no test would notice that mistake. Here all mutants
//! stand in one program beside what they replace, behind a switch that is read when it runs ("mutant schemata": Untch, Offutt
//! and Harrold, "Mutation analysis using mutant schemata", ISSTA 1993): building each by itself would take minutes.
//!
//! - `scope`: of what code mutants are made.
//! - `find`, `values`: where in it mistakes can be made, and which.
//! - `rewrite`: the code with all of them in it, and which of them a compiler's error is about.
//! - `tree`, `build`: a copy of the repository with that code, and the programs made of it. What does not compile is left out.
//! - `judge`: what may notice: tests, and lives of the simulator.
//! - `trial`, `results`: a sample of mutants before the judges, and what became of it.
//! - `equivalent`: those that a person says nothing can kill.
//!
//! [docs/mutations.md](../../../docs/mutations.md) is how to use it.

pub mod build;
pub mod equivalent;
pub mod find;
pub mod judge;
pub mod results;
pub mod rewrite;
pub mod scope;
pub mod switch;
pub mod tree;
pub mod trial;
pub mod values;
