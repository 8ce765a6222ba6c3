//! Columns for a terminal.

/// A table whose columns are as wide as their widest cell.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these headings. A heading that begins with `>` aligns its column to the right.
    pub fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let row = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Table { rows: vec![row], right }
    }

    /// Adds a row; one cell per heading.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.right.len(), "a row has one cell per heading");
        self.rows.push(cells);
    }

    /// The whole table, each line ended by a newline and free of trailing blanks.
    pub fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.right.len())
            .map(|column| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if self.right[column] {
                    line.push_str(&format!("{cell:>width$}  "));
                } else {
                    line.push_str(&format!("{cell:<width$}  "));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", ">SIZE", "POOL"]);
        table.row(vec!["a".into(), "8GiB".into(), "default".into()]);
        table.row(vec!["longer".into(), "512MiB".into(), "x".into()]);
        let expected = "NAME      SIZE  POOL\na         8GiB  default\nlonger  512MiB  x\n";
        assert_eq!(table.render(), expected);
    }
}
