"""Who may ask: keys, the tenants behind them, and what each may do."""
