//! Nothing that was acknowledged is lost: `kill -9`, power cuts with torn pages, a full disk, flipped bytes. Every
//! round runs the real daemon and reads everything back. The short forms are part of `make test`, the full counts of
//! `make soak`.

mod books;
mod clocks;
mod cuts;
mod damage;
pub mod disk;
mod erasures;
mod full;
mod kills;
mod losses;
pub mod points;
mod room;
pub mod seed;
pub mod shim;
mod writers;
