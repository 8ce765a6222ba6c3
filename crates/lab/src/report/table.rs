//! Columns for a terminal.

/// A table whose columns are as wide as their widest cell, each line ended by a newline and free of trailing blanks. A heading
/// that begins with `>` aligns its column to the right; a row has one cell per heading.
pub fn render(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let names = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(names).chain(rows).collect();
    assert!(rows.iter().all(|row| row.len() == headings.len()), "a row has one cell per heading");
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for ((cell, &width), heading) in row.iter().zip(&widths).zip(headings) {
            line += &match heading.starts_with('>') {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "8GiB", "default"], ["longer", "512MiB", "x"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let expected = "NAME      SIZE  POOL\na         8GiB  default\nlonger  512MiB  x\n";
        assert_eq!(render(&["NAME", ">SIZE", "POOL"], rows), expected);
    }
}
