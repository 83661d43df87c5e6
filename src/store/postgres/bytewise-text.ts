// Text is compared byte by byte, as SQLite does and IDs need: every column that a migration makes gets the
// collation "C", whatever the database was created with.
import { type DataTypeNode, PostgresDialect, PostgresQueryCompiler, type QueryCompiler } from 'kysely'

/** For migrations alone: elsewhere a type may stand where a collation must not. */
export class BytewiseDialect extends PostgresDialect {
  override createQueryCompiler(): QueryCompiler {
    return new BytewiseCompiler()
  }
}

class BytewiseCompiler extends PostgresQueryCompiler {
  protected override visitDataType(node: DataTypeNode): void {
    super.visitDataType(node)
    if (node.dataType === 'text') this.append(' collate "C"')
  }
}
