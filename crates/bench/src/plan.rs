//! The order of cells.
//!
//! Repeats are the outer loop, so drift over time affects all categories equally. Within a repeat all workloads of a category run
//! together, in one VM. Each repeat begins with another category, so none is always first. Workloads with another accelerator run
//! after the others of their category.
//!
//! ```text
//! repeat 0   plain: a b c | poll: a b c | swiotlb: a b c
//! repeat 1   poll: a b c | swiotlb: a b c | plain: a b c
//! ```

use crate::matrix::Matrix;

/// One run of one workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchCell {
    /// Index into the matrix's categories.
    pub category: usize,
    /// Index into its workloads.
    pub workload: usize,
    /// Repeat, from 0.
    pub repeat: u32,
}

/// A part of a matrix: `1/4` is the first of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub number: u32,
    /// Number of parts.
    pub of: u32,
}

impl Shard {
    /// The whole matrix.
    pub const WHOLE: Shard = Shard { number: 1, of: 1 };

    /// Reads `K/N`.
    pub fn read(text: &str) -> Option<Shard> {
        let (number, of) = text.split_once('/')?;
        let shard = Shard { number: number.parse().ok()?, of: of.parse().ok()? };
        (1..=shard.of).contains(&shard.number).then_some(shard)
    }

    /// Whether a workload belongs to this part. All cells of a workload run on one machine, so that they can be compared.
    fn has(self, workload: usize) -> bool {
        workload as u64 % u64::from(self.of) == u64::from(self.number - 1)
    }
}

impl BenchCell {
    /// Number of the cell in the whole matrix, from 1.
    pub fn number(self, matrix: &Matrix) -> u32 {
        let (categories, workloads) = (matrix.categories.len(), matrix.workloads.len());
        let before = (self.repeat as usize * categories + self.category) * workloads;
        u32::try_from(before + self.workload + 1).unwrap_or(u32::MAX)
    }

    /// The number of the second VM of a cell: after those of all cells.
    pub(crate) fn peer_number(self, matrix: &Matrix) -> u32 {
        let all = matrix.categories.len() * matrix.workloads.len() * matrix.repeats as usize;
        self.number(matrix).saturating_add(u32::try_from(all).unwrap_or(u32::MAX))
    }
}

/// The cells of a part, in the order of execution.
pub fn cells(matrix: &Matrix, shard: Shard) -> Vec<BenchCell> {
    let categories = matrix.categories.len();
    let mut workloads: Vec<usize> =
        (0..matrix.workloads.len()).filter(|workload| shard.has(*workload)).collect();
    let platforms = matrix.platforms();
    workloads.sort_by_key(|index| {
        let platform = matrix.platform(&matrix.workloads[*index]);
        platforms.iter().position(|other| *other == platform)
    });
    let mut cells = Vec::new();
    for repeat in 0..matrix.repeats {
        for turn in 0..categories {
            let category = (turn + repeat as usize) % categories;
            let place = &matrix.categories[category];
            let own = workloads
                .iter()
                .filter(|workload| matrix.fits(place, &matrix.workloads[**workload]));
            cells.extend(own.map(|workload| BenchCell { category, workload: *workload, repeat }));
        }
    }
    cells
}
